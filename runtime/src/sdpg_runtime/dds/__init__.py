"""The Go2's messages over DDS. `link.DdsLink` is what the runtime uses; a stand-in robot uses the parts beneath it.

`crc` and `layout` need numpy alone, the rest needs cyclonedds.
"""
