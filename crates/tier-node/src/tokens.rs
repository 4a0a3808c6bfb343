//! Tokens that name principals: a process that presents one acts for that principal, whichever user it belongs to.

use dunlin_rpc::Token;
use dunlin_tier::{Principal, PrincipalError};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The shortest token that names a principal, in bytes. A shorter one could be guessed.
pub const MIN_TOKEN: usize = 16;
/// The longest token, in bytes.
pub const MAX_TOKEN: usize = 255;
/// The most tokens of a node. Each new connection is compared with all of them.
pub const MAX_TOKENS: usize = 1024;
/// The longest file of secrets, in bytes: [`MAX_TOKENS`] lines of the longest tokens and names.
const MAX_FILE: u64 = 512 << 10;

/// The reason why the tokens of principals are refused. Places are lines of the file, or the order of
/// [`add`](PrincipalTokens::add), from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file is no text.
    #[error("the tokens are not UTF-8")]
    NotText,
    /// A line is not a token and a name.
    #[error("line {0} is not TOKEN NAME")]
    Line(usize),
    /// A token is too short or too long.
    #[error("token {place} has {length} bytes; tokens have {MIN_TOKEN} to {MAX_TOKEN}")]
    Length {
        /// The place of the token.
        place: usize,
        /// Its length in bytes.
        length: usize,
    },
    /// One token has two names.
    #[error("token {0} names another principal before: give each principal a token of its own")]
    TwoNames(usize),
    /// The name of a principal is invalid.
    #[error("token {place} names no principal")]
    Principal {
        /// The place of the token.
        place: usize,
        /// The reason.
        source: PrincipalError,
    },
    /// There are too many tokens.
    #[error("there are more than {MAX_TOKENS} tokens")]
    TooMany,
}

/// The tokens of a node, each with the principal that it names. A principal may have several, so that a new one can be
/// given out before the old one is taken away. `Debug` prints no token.
#[derive(Clone, Debug, Default)]
pub struct PrincipalTokens(Vec<(Token, Principal)>);

impl PrincipalTokens {
    /// Adds a token. A repetition with the same name succeeds.
    ///
    /// # Errors
    /// The length of the token, the name, or a token that names another principal.
    pub fn add(&mut self, token: &[u8], name: &str) -> Result<(), TokenError> {
        self.add_at(self.0.len() + 1, token, name)
    }

    fn add_at(&mut self, place: usize, token: &[u8], name: &str) -> Result<(), TokenError> {
        if !(MIN_TOKEN..=MAX_TOKEN).contains(&token.len()) {
            return Err(TokenError::Length { place, length: token.len() });
        }
        let principal = Principal::new(name).map_err(|source| TokenError::Principal { place, source })?;
        match self.principal_of(&Token(token.to_vec())) {
            Some(known) if *known == principal => return Ok(()),
            Some(_) => return Err(TokenError::TwoNames(place)),
            None => {}
        }
        if self.0.len() >= MAX_TOKENS {
            return Err(TokenError::TooMany);
        }
        self.0.push((Token(token.to_vec()), principal));
        Ok(())
    }

    /// Parses lines of `TOKEN NAME`. Empty lines, and those that begin with `#`, are left out.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<PrincipalTokens, TokenError> {
        let text = std::str::from_utf8(bytes).map_err(|_| TokenError::NotText)?;
        let mut tokens = PrincipalTokens::default();
        for (at, line) in text.lines().enumerate() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (None, ..) => {}
                (Some(first), ..) if first.starts_with('#') => {}
                (Some(token), Some(name), None) => tokens.add_at(at + 1, token.as_bytes(), name)?,
                _ => return Err(TokenError::Line(at + 1)),
            }
        }
        Ok(tokens)
    }

    /// Returns the principal that a token names. Compares it with all tokens, each in a time that does not depend on the
    /// place of the first difference.
    pub(crate) fn principal_of(&self, shown: &Token) -> Option<&Principal> {
        let mut found = None;
        for (token, principal) in &self.0 {
            if shown.matches(&token.0) {
                found = Some(principal);
            }
        }
        found
    }

    /// Returns whether a token names this principal.
    pub(crate) fn name(&self, principal: &str) -> bool {
        self.0.iter().any(|(_, named)| named.as_str() == principal)
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The reason why a file with a secret is not used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Other users may read or write the file.
    #[error("other users may read {}, which has a secret: make it readable for its owner only (chmod 600)", .0.display())]
    Shared(PathBuf),
    /// The file is empty.
    #[error("{} is empty: write the secret into it", .0.display())]
    Empty(PathBuf),
    /// The file is too long.
    #[error("{} has more than {MAX_FILE} bytes", .0.display())]
    TooLong(PathBuf),
}

/// Reads a file with a secret, and returns it without the white space around it. Reads from the disk.
///
/// # Errors
/// The file cannot be read, is empty or too long, or other users have a right to it. A pipe has no such rights.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, SecretError> {
    let failed = |source| SecretError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // Of the open file: the path may lead to another one by now.
    let about = file.metadata().map_err(failed)?;
    if about.is_file() && about.mode() & 0o077 != 0 {
        return Err(SecretError::Shared(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(SecretError::TooLong(path.to_owned()));
    }
    let secret = bytes.trim_ascii();
    if secret.is_empty() { Err(SecretError::Empty(path.to_owned())) } else { Ok(secret.to_vec()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt as _;

    const ONE: &str = "0123456789abcdef";
    const OTHER: &str = "0123456789abcdeF";

    fn name(tokens: &PrincipalTokens, shown: &str) -> Option<String> {
        tokens.principal_of(&Token(shown.into())).map(|principal| principal.as_str().to_owned())
    }

    #[test]
    fn lines_are_tokens_with_names() {
        let text = format!("# who\n\n  {ONE}\talice  \n{OTHER} bob\r\n{ONE}x alice");
        let tokens = PrincipalTokens::parse(text.as_bytes()).unwrap();
        assert_eq!(tokens.len(), 3);
        assert_eq!(name(&tokens, ONE).as_deref(), Some("alice"));
        assert_eq!(name(&tokens, OTHER).as_deref(), Some("bob"));
        assert_eq!(name(&tokens, &format!("{ONE}x")).as_deref(), Some("alice"));
        for unknown in ["", &ONE[1..], &ONE[..15], "0123456789abcdex", "alice"] {
            assert_eq!(name(&tokens, unknown), None, "{unknown}");
        }
        assert!(tokens.name("alice") && !tokens.name("carol"));
        assert!(!format!("{tokens:?}").contains(ONE));
        assert!(PrincipalTokens::parse(b"").unwrap().is_empty());
    }

    #[test]
    fn wrong_lines_are_refused_with_their_place() {
        let long = "x".repeat(MAX_TOKEN + 1);
        let refused = |text: &str| PrincipalTokens::parse(text.as_bytes()).unwrap_err();
        assert_eq!(refused(&format!("{ONE} alice\n{ONE}")), TokenError::Line(2));
        assert_eq!(refused(&format!("{ONE} alice bob")), TokenError::Line(1));
        assert_eq!(refused("\nshort alice"), TokenError::Length { place: 2, length: 5 });
        assert_eq!(refused(&format!("{long} alice")), TokenError::Length { place: 1, length: 256 });
        assert_eq!(refused(&format!("{ONE} alice\n{OTHER} bob\n{ONE} bob")), TokenError::TwoNames(3));
        let principal = refused(&format!("{ONE} {}", "a".repeat(65)));
        assert_eq!(principal, TokenError::Principal { place: 1, source: PrincipalError(65) });
        assert_eq!(PrincipalTokens::parse(b"\xff").unwrap_err(), TokenError::NotText);
        let mut tokens = PrincipalTokens::default();
        assert_eq!(tokens.add(b"", "alice"), Err(TokenError::Length { place: 1, length: 0 }));
        for number in 0..MAX_TOKENS {
            tokens.add(format!("{number:016}").as_bytes(), "alice").unwrap();
        }
        tokens.add(format!("{:016}", 7).as_bytes(), "alice").unwrap();
        assert_eq!(tokens.add(ONE.as_bytes(), "alice"), Err(TokenError::TooMany));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = PrincipalTokens::parse(&bytes);
        }
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        assert!(matches!(read_secret(&path), Err(SecretError::Read { .. })));
        std::fs::write(&path, format!(" {ONE}\n")).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        for others in [0o604, 0o640, 0o620, 0o602, 0o610, 0o601] {
            mode(others);
            assert!(matches!(read_secret(&path), Err(SecretError::Shared(_))), "{others:o}");
        }
        mode(0o600);
        assert_eq!(read_secret(&path).unwrap(), ONE.as_bytes());
        std::fs::write(&path, " \n\t").unwrap();
        assert!(matches!(read_secret(&path), Err(SecretError::Empty(_))));
        std::fs::write(&path, vec![b'x'; MAX_FILE as usize + 1]).unwrap();
        assert!(matches!(read_secret(&path), Err(SecretError::TooLong(_))));
    }
}
