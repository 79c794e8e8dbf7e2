package pubsub

// Hubs is how many nodes s remembers.
func (s *Shards) Hubs() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.hubs)
}
