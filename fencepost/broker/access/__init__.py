"""Who a connection is (SASL, certificates), and what it may do (ACLs). Off unless users or ACLs are given."""
