//! KubeControllersConfiguration (DS-106). Its status has a `spec` in it: what of the object is in force.

use serde_json::Value;

use super::custom_resource::CustomResource;
use super::field::Field;
use crate::api::{KubeControllersConfigurationSpec, KubeControllersConfigurationStatus};
use crate::kubernetes::ApiGroup;

pub(super) fn definition(group: ApiGroup) -> Value {
    let (kind, plural) = ("KubeControllersConfiguration", "kubecontrollersconfigurations");
    let about = "Settings of kube-controllers. There is one, called default.";
    CustomResource::new::<KubeControllersConfigurationSpec>(group, kind, plural, about)
        .spec(fields)
        .status::<KubeControllersConfigurationStatus>("What kube-controllers does.", |status| {
            fields(&mut status.at("runningConfig"));
        })
        .definition()
}

/// What the types do not say of the settings, be they asked for or in force.
fn fields(spec: &mut Field<'_>) {
    spec.required(&["controllers"]);
    spec.at("healthChecks").default("Enabled");
    spec.at("debugProfilePort").set("format", "int32");
    let mut controllers = spec.at("controllers");
    controllers.at("loadBalancer").at("assignIPs").default("AllServices");
    controllers.at("migration").at("policyNameMigrator").default("Enabled");
}
