"""`hvdtrain launch`, which starts a lost rank again at once however often it is lost, for jobs with many kills."""

import sys

from hvdtrain.__main__ import main
from hvdtrain.jobs import places

places.FIRST_PAUSE_S = places.QUICK_S = 0.0
main(["launch", *sys.argv[1:]])
