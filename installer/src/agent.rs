//! `calico refresh-token`: keeps what was installed in the state that is wanted, for as long as the node lives (INST-49).
