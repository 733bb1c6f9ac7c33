//! The kubeconfig of the plugins: `calico-kubeconfig` beside the network configuration (INST-23).
