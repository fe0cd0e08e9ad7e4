"""What only the paper behind ANNCUR needs: its protocol, experiments, baselines and claims."""
