"""Advice: what each rule would bring on given models, texts and costs."""
