"""Mining of the data that heads are trained on.

:mod:`.search` is AutoJudge's search for important tokens, :mod:`.ratio_labels` collects SPRINTER's labels, and
:mod:`.storage` keeps and reads both.
"""
