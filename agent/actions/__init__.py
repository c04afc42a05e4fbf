"""Actions: functions that change one thing, after rechecking what their call says."""
