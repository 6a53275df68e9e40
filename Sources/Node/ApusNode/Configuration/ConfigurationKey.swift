/// A key that a configuration may have, as its reader asked for it: what the reference lists.
public struct ConfigurationKey: Sendable, Hashable {
    /// What the key takes.
    public enum Kind: Sendable, Hashable {
        case text
        /// 1 to 63 letters, digits, `-`, `_` or `.`.
        case name
        case number(ClosedRange<Int>)
        case duration
        case bytes
        case hostPort
        /// At most so many words with spaces between them.
        case words(Int)
        case choice([String])
    }

    /// With the keys of the maps around it: `gateway.keepalive`.
    public let name: String
    public let kind: Kind
    /// The default as a file would have it; nil for a key that must be given.
    public let fallback: String?
}
