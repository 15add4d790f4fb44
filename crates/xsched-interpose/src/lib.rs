//! Hooks without vendor names: real functions, re-entry, fork and exit.
