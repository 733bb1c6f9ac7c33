//! [`SettingsError`].

/// An environment that cannot be followed. The process ends with it (KC-104).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A name that no controller has.
    #[error("ENABLED_CONTROLLERS: `{name}` is not a controller; valid are {valid}")]
    UnknownController {
        /// The name.
        name: String,
        /// All names.
        valid: String,
    },
    /// The migration from flannel is not part of this program.
    #[error(
        "ENABLED_CONTROLLERS: `flannelmigration` is not offered; run upstream's kube-controllers for the migration"
    )]
    FlannelMigration,
    /// A value that is not of the variable's form.
    #[error("{variable}: `{value}` is not {wanted}")]
    Value {
        /// The environment variable.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What it should say.
        wanted: &'static str,
    },
}
