"""Facts: what each call and each rank is, decided once; nothing here knows who waits for whom."""
