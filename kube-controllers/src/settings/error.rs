//! [`SettingsError`].

/// An invalid environment, with which the process ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A name of no controller.
    #[error("ENABLED_CONTROLLERS: `{name}` is not a controller; valid are {valid}")]
    UnknownController {
        /// The invalid name.
        name: String,
        /// All valid names.
        valid: String,
    },
    /// The migration from flannel, which this program does not contain.
    #[error(
        "ENABLED_CONTROLLERS: `flannelmigration` is not offered; run upstream's kube-controllers for the migration"
    )]
    FlannelMigration,
    /// A value of the wrong form.
    #[error("{variable}: `{value}` is not {wanted}")]
    Value {
        /// The environment variable.
        variable: &'static str,
        /// The invalid value.
        value: String,
        /// The expected form.
        wanted: &'static str,
    },
}
