"""Evidence: what attacks can and cannot do against a run or a configuration."""
