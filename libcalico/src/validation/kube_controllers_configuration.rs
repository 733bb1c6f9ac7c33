//! Rules for KubeControllersConfiguration, a kind with a single object.

use std::collections::BTreeSet;

use super::metadata::check_singleton;
use super::syntax::{MAX_NAME, network};
use crate::api::{
    GoDuration, HostEndpointTemplate, KubeControllersConfiguration,
    KubeControllersConfigurationSpec,
};
use crate::selector::Selector;
use crate::validation_error::{FieldError, ValidationError};

/// The default TCP port of the metrics.
const METRICS_PORT: i64 = 9094;
/// The default grace period of leaks.
const LEAK_GRACE_PERIOD: GoDuration = GoDuration::from_mins(15);
const ALL_SERVICES: &str = "AllServices";

/// Replaces missing values by the defaults. Readers must do the same, because an object written by
/// kubectl may lack these values (KC-152).
pub fn complete_kube_controllers_configuration(spec: &mut KubeControllersConfigurationSpec) {
    spec.prometheus_metrics_port.get_or_insert(METRICS_PORT);
    if let Some(node) = &mut spec.controllers.node {
        node.leak_grace_period.get_or_insert(LEAK_GRACE_PERIOD);
    }
    if let Some(load_balancer) = &mut spec.controllers.load_balancer {
        let assigned = load_balancer
            .assign_ips
            .take()
            .filter(|which| !which.is_empty());
        load_balancer.assign_ips = Some(assigned.unwrap_or_else(|| ALL_SERVICES.into()));
    }
}

/// Checks that the object may be written.
pub fn validate_kube_controllers_configuration(
    config: &KubeControllersConfiguration,
) -> Result<(), ValidationError> {
    let mut findings = check_singleton(config, "a Kube Controllers Configuration");
    let host_endpoint = config
        .spec
        .controllers
        .node
        .as_ref()
        .and_then(|node| node.host_endpoint.as_ref());
    findings.extend(
        host_endpoint
            .into_iter()
            .flat_map(|auto| invalid_templates(&auto.templates))
            .map(|(_, e)| e),
    );
    ValidationError::from_findings(findings)
}

/// Returns the index of each invalid template, with its first invalid field.
pub fn invalid_templates(templates: &[HostEndpointTemplate]) -> Vec<(usize, FieldError)> {
    let mut names = BTreeSet::new();
    let problem =
        |(index, template)| invalid_template(template, &mut names).map(|error| (index, error));
    templates.iter().enumerate().filter_map(problem).collect()
}

fn invalid_template<'t>(
    template: &'t HostEndpointTemplate,
    names: &mut BTreeSet<&'t str>,
) -> Option<FieldError> {
    let name = template.generate_name.as_str();
    if name.is_empty() {
        return Some(FieldError::missing(
            "Template.GenerateName",
            "a template needs a name",
        ));
    }
    if name.len() > MAX_NAME {
        let reason = format!("name is too long by {} bytes", name.len() - MAX_NAME);
        return Some(FieldError::new("Template.GenerateName", name, reason));
    }
    if !names.insert(name) {
        return Some(FieldError::new(
            "Template.GenerateName",
            name,
            "names of templates must be unique",
        ));
    }
    if template.interface_cidrs.is_empty() && template.interface_pattern.is_empty() {
        let reason = "at least one of interfaceCIDRs and interfacePattern must be given";
        return Some(FieldError::new("Template.GenerateName", name, reason));
    }
    if let Some(cidr) = template
        .interface_cidrs
        .iter()
        .find(|text| network(text).is_none())
    {
        return Some(FieldError::tag("InterfaceCIDRs", cidr, "cidrs"));
    }
    let selector = Selector::parse(&template.node_selector).err()?;
    Some(FieldError::new(
        "Template.NodeSelector",
        &template.node_selector,
        selector.to_string(),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::metadata::SINGLETON;
    use super::*;
    use crate::api::{AutoHostEndpointConfig, LoadBalancerControllerConfig, NodeControllerConfig};

    fn template(name: &str) -> HostEndpointTemplate {
        HostEndpointTemplate {
            generate_name: name.into(),
            interface_cidrs: vec!["10.0.0.0/8".into()],
            ..HostEndpointTemplate::default()
        }
    }

    fn with_templates(templates: Vec<HostEndpointTemplate>) -> KubeControllersConfiguration {
        let host_endpoint = AutoHostEndpointConfig {
            templates,
            ..AutoHostEndpointConfig::default()
        };
        let node = NodeControllerConfig {
            host_endpoint: Some(host_endpoint),
            ..NodeControllerConfig::default()
        };
        let mut configuration = KubeControllersConfiguration::new(
            SINGLETON,
            KubeControllersConfigurationSpec::default(),
        );
        configuration.spec.controllers.node = Some(node);
        configuration
    }

    #[test]
    fn kube_controllers_configuration_must_be_named_default() {
        let mut named = with_templates(Vec::new());
        assert_eq!(validate_kube_controllers_configuration(&named), Ok(()));
        named.metadata.name = "other".into();
        let error = validate_kube_controllers_configuration(&named)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("with a name other than \"default\""),
            "{error}"
        );
    }

    #[test]
    fn missing_controller_settings_get_their_defaults() {
        let mut spec = KubeControllersConfigurationSpec::default();
        complete_kube_controllers_configuration(&mut spec);
        assert_eq!(
            (spec.prometheus_metrics_port, &spec.controllers.node),
            (Some(9094), &None)
        );

        spec.prometheus_metrics_port = Some(0);
        spec.controllers.node = Some(NodeControllerConfig::default());
        let empty = LoadBalancerControllerConfig {
            assign_ips: Some(String::new()),
            ..Default::default()
        };
        spec.controllers.load_balancer = Some(empty);
        complete_kube_controllers_configuration(&mut spec);
        assert_eq!(
            spec.prometheus_metrics_port,
            Some(0),
            "0 turns the metrics off"
        );
        assert_eq!(
            spec.controllers.node.unwrap().leak_grace_period,
            Some("15m".parse().unwrap())
        );
        assert_eq!(
            spec.controllers
                .load_balancer
                .unwrap()
                .assign_ips
                .as_deref(),
            Some("AllServices")
        );
    }

    #[test]
    fn templates_need_unique_names_and_valid_matches() {
        let nothing = HostEndpointTemplate {
            interface_cidrs: Vec::new(),
            ..template("nothing")
        };
        let pattern = HostEndpointTemplate {
            interface_pattern: "eth.*".into(),
            ..nothing.clone()
        };
        let templates = vec![
            template("a"),
            template("a"),
            template(""),
            template(&"n".repeat(254)),
            nothing,
            HostEndpointTemplate {
                generate_name: "pattern".into(),
                ..pattern
            },
            HostEndpointTemplate {
                interface_cidrs: vec!["10.0.0.0/33".into()],
                ..template("b")
            },
            HostEndpointTemplate {
                node_selector: "has(".into(),
                ..template("c")
            },
        ];
        let wrong: Vec<usize> = invalid_templates(&templates)
            .into_iter()
            .map(|(index, _)| index)
            .collect();
        assert_eq!(wrong, [1, 2, 3, 4, 6, 7]);
        assert!(validate_kube_controllers_configuration(&with_templates(templates)).is_err());
        assert_eq!(
            validate_kube_controllers_configuration(&with_templates(vec![template("a")])),
            Ok(())
        );
    }
}
