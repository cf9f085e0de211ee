"""The halcyon command. It speaks to the daemon over the control socket alone and never imports what the daemon is made of."""
