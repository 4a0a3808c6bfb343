//! Profiles: the known facts about a cluster, each number with its source and its kind.
//!
//! A profile is two texts. The NIC's text is shared by all clusters with that NIC. The cluster's text names
//! the NIC and may override some of its numbers, with a reason.

mod document;
mod error;
mod parameter;

pub use error::ProfileError;
pub use error::nearest;
pub use parameter::{Parameter, Scope};

/// The provenance of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Measured by this project, or by others whose raw logs are available.
    Measured,
    /// Stated by the paper or a data sheet.
    Paper,
    /// Fitted to raw-verb curves, which the source names.
    Fit,
    /// Assumed, for the reason in the source.
    Assumed,
}

impl Kind {
    /// Returns the word used in the files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Measured => "measured",
            Kind::Paper => "paper",
            Kind::Fit => "fit",
            Kind::Assumed => "assumed",
        }
    }
}

/// A number with its provenance.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The number, in the unit of its key.
    pub number: f64,
    /// The kind of its provenance.
    pub kind: Kind,
    /// The origin, the fitted curves, or the reason of an assumption.
    pub source: String,
    /// The file that states it.
    pub file: String,
}

/// A cluster's profile, complete and checked.
#[derive(Clone, Debug)]
pub struct Profile {
    name: String,
    title: String,
    processor: String,
    nic: String,
    notes: String,
    values: Vec<Value>,
    hash: u64,
}

/// File name and text of each built-in NIC.
const NICS: &[(&str, &str)] = &[
    ("connectx3", include_str!("../../profiles/nic/connectx3.toml")),
    ("connectx4", include_str!("../../profiles/nic/connectx4.toml")),
    ("connectx5", include_str!("../../profiles/nic/connectx5.toml")),
    ("connect-ib", include_str!("../../profiles/nic/connect-ib.toml")),
];

/// File name and text of each built-in cluster.
const CLUSTERS: &[(&str, &str)] = &[
    ("apt", include_str!("../../profiles/apt.toml")),
    ("connect-ib", include_str!("../../profiles/connect-ib.toml")),
    ("rf-rpc", include_str!("../../profiles/rf-rpc.toml")),
    ("rf-rpc-20g", include_str!("../../profiles/rf-rpc-20g.toml")),
    ("rf-rpc-roce", include_str!("../../profiles/rf-rpc-roce.toml")),
    ("rf-rpc-connectx4", include_str!("../../profiles/rf-rpc-connectx4.toml")),
    ("lite", include_str!("../../profiles/lite.toml")),
    ("scalerpc", include_str!("../../profiles/scalerpc.toml")),
    ("flock", include_str!("../../profiles/flock.toml")),
    ("hatrpc", include_str!("../../profiles/hatrpc.toml")),
];

impl Profile {
    /// Returns the names of the built-in profiles.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        CLUSTERS.iter().map(|(name, _)| *name)
    }

    /// Returns a built-in profile.
    ///
    /// # Errors
    /// Returns an error for an unknown name, with the nearest known one.
    pub fn built_in(name: &str) -> Result<Profile, ProfileError> {
        let Some((name, text)) = CLUSTERS.iter().find(|(known, _)| *known == name) else {
            return Err(ProfileError::UnknownProfile {
                name: name.to_owned(),
                nearest: nearest(name, CLUSTERS.iter().map(|(name, _)| *name)).to_owned(),
                known: Profile::built_in_names().collect::<Vec<_>>().join(", "),
            });
        };
        Profile::parse(&format!("{name}.toml"), text)
    }

    /// Parses a cluster's file; its NIC must be built in.
    ///
    /// # Errors
    /// Returns the first problem with file and line, and for an unknown word the nearest known one.
    pub fn parse(file_name: &str, text: &str) -> Result<Profile, ProfileError> {
        let cluster = document::Document::read(file_name, text)?;
        let nic_name = cluster.word("nic")?.clone();
        let Some((nic_name, nic_text)) = NICS.iter().find(|(known, _)| *known == nic_name.text) else {
            return Err(ProfileError::UnknownNic {
                file: file_name.to_owned(),
                line: nic_name.line,
                nearest: nearest(&nic_name.text, NICS.iter().map(|(name, _)| *name)).to_owned(),
                name: nic_name.text,
            });
        };
        let nic = document::Document::read(&format!("nic/{nic_name}.toml"), nic_text)?;
        Profile::combine(&cluster, &nic)
    }

    /// Parses a cluster's file and its NIC's file, each given as (name, text).
    ///
    /// # Errors
    /// As [`Profile::parse`].
    pub fn parse_with_nic(cluster: (&str, &str), nic: (&str, &str)) -> Result<Profile, ProfileError> {
        Profile::combine(
            &document::Document::read(cluster.0, cluster.1)?,
            &document::Document::read(nic.0, nic.1)?,
        )
    }

    fn combine(cluster: &document::Document, nic: &document::Document) -> Result<Profile, ProfileError> {
        nic.check_scope(Scope::Nic)?;
        cluster.check_scope(Scope::Cluster)?;
        let mut values = Vec::with_capacity(Parameter::ALL.len());
        for parameter in Parameter::ALL.iter().copied() {
            let own = match parameter.scope() {
                Scope::Nic => nic,
                Scope::Cluster => cluster,
            };
            let value = cluster.overridden(parameter).or_else(|| own.value(parameter));
            values.push(value.cloned().ok_or_else(|| ProfileError::Missing {
                file: own.file().to_owned(),
                section: parameter.section(),
                key: parameter.key(),
                meaning: parameter.meaning(),
            })?);
        }
        let name = cluster.file().rsplit('/').next().unwrap_or_default();
        let mut profile = Profile {
            name: name.strip_suffix(".toml").unwrap_or(name).to_owned(),
            title: cluster.word("title")?.text.clone(),
            processor: cluster.word("processor")?.text.clone(),
            nic: nic.word("title")?.text.clone(),
            notes: cluster.word("notes").map(|word| word.text.clone()).unwrap_or_default(),
            values,
            hash: 0,
        };
        profile.rehash();
        Ok(profile)
    }

    fn rehash(&mut self) {
        let mut text = String::new();
        for (parameter, value) in Parameter::ALL.iter().zip(&self.values) {
            text.push_str(&parameter.name());
            text.push_str(&format!("={:016x};", value.number.to_bits()));
        }
        self.hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
    }

    /// Returns the profile's name: its file name without the extension.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a one-line description of the cluster.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the processor of its hosts.
    #[must_use]
    pub fn processor(&self) -> &str {
        &self.processor
    }

    /// Returns its NIC.
    #[must_use]
    pub fn nic(&self) -> &str {
        &self.nic
    }

    /// Returns notes for readers of the numbers.
    #[must_use]
    pub fn notes(&self) -> &str {
        &self.notes
    }

    /// Returns a hash of all numbers: profiles with equal hashes give equal predictions.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns a number with its provenance.
    #[must_use]
    pub fn value(&self, parameter: Parameter) -> &Value {
        &self.values[parameter as usize]
    }

    /// Returns a number.
    #[must_use]
    pub fn number(&self, parameter: Parameter) -> f64 {
        self.value(parameter).number
    }

    /// Returns a copy with one number changed, clamped to its range. Calibration uses it to try values.
    #[must_use]
    pub fn with(&self, parameter: Parameter, number: f64) -> Profile {
        let (low, high) = parameter.range();
        let mut changed = self.clone();
        changed.values[parameter as usize].number = number.clamp(low, high);
        changed.rehash();
        changed
    }
}
