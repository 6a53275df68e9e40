"""The accurate speech provider: see ../provider.py and docs/voice-engines.md."""
