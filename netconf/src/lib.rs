//! netconf
