//! Tokens for the plugins' service account, by TokenRequest (INST-42).
