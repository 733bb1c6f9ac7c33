//! `calico doctor`: what is wrong with this node's installation, and the way out.
