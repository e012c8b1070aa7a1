import sys

from sdpg.cli import main

sys.exit(main())
