# The wheel of lz4 carries no types: these are the parts that Fencepost calls.
