//! The calls by which the servers of a deployment ask each other (ScaleRPC section 4.2).

use crate::client::ClientConfig;
use crate::server::deployment::{Asker, Deployment, Prepared};
use crate::server::{ServerBuilder, ServerConfig};
use crate::share::Client;
use dunlin_fabric::Fabric;

impl<F: Fabric> ServerBuilder<F> {
    /// Makes the server one of a deployment whose servers share one schedule, from which all of them know who is served
    /// when. The server has one more thread, which asks the others.
    ///
    /// All servers need the same token and service name. Starting the server fails if a setting is out of range, or if the
    /// application has a function of the deployment's number.
    #[must_use]
    pub fn deployment(mut self, settings: Deployment) -> Self {
        let (fabric, deployment) = (self.fabric().clone(), settings.clone());
        let asker = move |server: &ServerConfig| {
            let config = ClientConfig {
                window: 1,
                worker: Some(0),
                timeout: deployment.timeout,
                connect_timeout: deployment.timeout,
                token: server.token.clone(),
                service: server.service.clone(),
                program: "dunlin-deployment".to_owned(),
                ..ClientConfig::default()
            };
            let clients = deployment.servers.iter().map(|_| None).collect();
            Box::new(ByCalls { fabric, deployment, config, clients }) as Box<dyn Asker>
        };
        self.prepare(Prepared { settings, asker: Box::new(asker) });
        self
    }
}

/// Asks by ordinary calls, on connections that are made when they are needed.
struct ByCalls<F: Fabric> {
    fabric: F,
    deployment: Deployment,
    config: ClientConfig,
    clients: Vec<Option<Client<F>>>,
}

impl<F: Fabric> Asker for ByCalls<F> {
    fn ask(&mut self, server: u16, question: &[u8]) -> Option<Vec<u8>> {
        let at = usize::from(server);
        let (place, address) = (self.clients.get_mut(at)?, self.deployment.servers.get(at)?);
        let client = match place {
            Some(client) => client,
            none => match Client::connect(&self.fabric, address, self.config.clone()) {
                Ok(client) => none.insert(client),
                Err(error) => {
                    tracing::debug!(target: "dunlin::server", server, %error, "a server of the deployment cannot be reached");
                    return None;
                }
            },
        };
        match client.call(self.deployment.function, question).map(|answer| answer.to_vec()) {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::debug!(target: "dunlin::server", server, %error, "a server of the deployment does not answer");
                // The next question connects again.
                self.clients[at] = None;
                None
            }
        }
    }
}
