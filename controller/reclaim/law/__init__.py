"""The law of reclaim as pure judgement: families, certificates, anchors, heirs."""
