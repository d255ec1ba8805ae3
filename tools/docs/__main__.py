"""`python -m tools.docs`: write the generated parts of every page anew."""

import sys

from tools.docs.pages import main

sys.exit(main())
