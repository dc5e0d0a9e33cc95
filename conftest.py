"""What all tests share: property tests draw the same examples every time, so that a run says something of the change.

`TIMERD_EXPLORE=1` lets them draw new ones; what it finds is printed with the line that replays it.
"""

import os

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("explore" if os.environ.get("TIMERD_EXPLORE") else "steady")
