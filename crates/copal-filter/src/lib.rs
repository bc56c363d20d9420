//! Filter units, heat and rules; pure.
