//! [`Feeds`]: the watches of the process, one for each kind of object.

use datastore::watch::Watch;
use libcalico::api::Node as CalicoNode;
use libcalico::api::{HostEndpoint, IpPool, IpReservation, KubeControllersConfiguration, Tier, WorkloadEndpoint};
use libcalico::ipam::Block;
use libcalico::store::Entry;

use super::handler::Feed;
use super::running::{Running, follow};
use super::source::source;
use crate::context::Context;
use crate::watched::{Machine, MachineInstance, Namespace, NetworkPolicy, Node, Pod, Service, ServiceAccount, Wanted};

/// Declares one watch per line. Watches of Kubernetes kinds deliver a projection; watches of Calico's kinds deliver
/// whole objects.
macro_rules! feeds {
    (
        kubernetes { $($(#[$native_doc:meta])* $native:ident: $projection:ty,)* }
        calico { $($(#[$calico_doc:meta])* $calico:ident: $kind:ty,)* }
    ) => {
        /// The watches to which controllers can subscribe.
        #[derive(Default)]
        pub struct Feeds {
            /// Optional parts of the projections. A controller that needs one requests it when it subscribes.
            pub wanted: Wanted,
            $($(#[$native_doc])* pub $native: Feed<$projection>,)*
            $($(#[$calico_doc])* pub $calico: Feed<Entry<$kind>>,)*
        }

        impl Feeds {
            /// Starts the watches that have listeners. The watches end with `context.stop`.
            pub fn start(self, context: &Context) -> Running {
                let mut running = Running::default();
                $(if self.$native.is_wanted() {
                    let watch = Watch::new(source::<$projection>(context, self.wanted));
                    let meter = watch.meter();
                    running.add(self.$native, meter, |feed| follow(watch, feed, context.clone()));
                })*
                $(if self.$calico.is_wanted()
                    && let Some(watch) = context.calico.watch::<$kind>(&Default::default())
                {
                    let meter = watch.meter();
                    running.add(self.$calico, meter, |feed| follow(watch, feed, context.clone()));
                })*
                running
            }
        }
    };
}

feeds! {
    kubernetes {
        /// Pods.
        pods: Pod,
        /// Nodes.
        nodes: Node,
        /// Namespaces.
        namespaces: Namespace,
        /// Service accounts.
        service_accounts: ServiceAccount,
        /// Network policies.
        network_policies: NetworkPolicy,
        /// Services.
        services: Service,
        /// KubeVirt's VirtualMachines, if KubeVirt is installed.
        machines: Machine,
        /// KubeVirt's VirtualMachineInstances (VMIs), if KubeVirt is installed.
        machine_instances: MachineInstance,
    }
    calico {
        /// Blocks.
        blocks: Block,
        /// IP pools.
        ip_pools: IpPool,
        /// Reservations.
        ip_reservations: IpReservation,
        /// Calico's nodes.
        calico_nodes: CalicoNode,
        /// Host endpoints.
        host_endpoints: HostEndpoint,
        /// Tiers.
        tiers: Tier,
        /// Configurations of kube-controllers.
        configurations: KubeControllersConfiguration,
        /// Workload endpoints (etcd only).
        workload_endpoints: WorkloadEndpoint,
    }
}
