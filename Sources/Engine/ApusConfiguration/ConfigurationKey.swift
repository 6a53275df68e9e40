/// A key that a configuration may have, as its reader requested it. The reference lists these keys.
public struct ConfigurationKey: Sendable, Hashable {
    /// The kind of a key's value.
    public enum Kind: Sendable, Hashable {
        case text
        /// 1 to 63 letters, digits, `-`, `_` or `.`.
        case name
        case number(ClosedRange<Int>)
        /// 0 to 1, with a decimal point.
        case ratio
        case duration
        case bytes
        case hostPort
        /// At most this many words, separated by spaces.
        case words(Int)
        case choice([String])
    }

    /// The full name, including the maps around it: `gateway.keepalive`.
    public let name: String
    public let kind: Kind
    /// The default in the notation of the file; nil for a required key.
    public let fallback: String?
}
