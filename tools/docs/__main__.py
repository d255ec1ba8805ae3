"""`python -m tools.docs`: regenerate the generated sections of every page."""

import sys

from tools.docs.pages import main

sys.exit(main())
