/// The header with which a proxy announces its client, before any other byte of a connection: version 2 of the PROXY
/// protocol (haproxy.org, "The PROXY protocol", §2.2).
///
/// Its length is known after 16 bytes. A reader that reads only the wanted bytes therefore never consumes a byte of the
/// client's. Type-length-values after the addresses are skipped. Version 1, which is text, is not supported.
package enum ProxyHeader: Hashable, Sendable {
    /// This many bytes are needed, counted from the connection's first one.
    case incomplete(wanted: Int)
    /// The header has this many bytes. The client is nil if the proxy speaks for itself (a health check) or does not
    /// know an address; the connection's address then counts.
    case complete(byteCount: Int, client: TransportAddress?)
    /// Not a header, or one for something other than a stream. The connection must be closed.
    case invalid

    /// The longest header that is accepted, in bytes.
    package static let byteCountMax = 2_048
    private static let fixedByteCount = 16
    private static let signature: [UInt8] = [0x0D, 0x0A, 0x0D, 0x0A, 0, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A]

    /// Parses the bytes of a connection received so far.
    package init(_ bytes: some Collection<UInt8>) {
        let head = Array(bytes.prefix(Self.fixedByteCount))
        guard head.starts(with: Self.signature.prefix(head.count)) else {
            self = .invalid
            return
        }
        guard head.count == Self.fixedByteCount else {
            self = .incomplete(wanted: Self.fixedByteCount)
            return
        }
        let count = Int(head[14]) << 8 | Int(head[15])
        guard let addressByteCount = Self.addressByteCount(command: head[12], family: head[13]),
            count >= 2 * addressByteCount + (addressByteCount == 0 ? 0 : 4),
            Self.fixedByteCount + count <= Self.byteCountMax
        else {
            self = .invalid
            return
        }
        guard bytes.count >= Self.fixedByteCount + count else {
            self = .incomplete(wanted: Self.fixedByteCount + count)
            return
        }
        // Both addresses, then both ports, the client's first.
        let rest = Array(bytes.dropFirst(Self.fixedByteCount).prefix(2 * addressByteCount + 2))
        let port = rest.suffix(2).reduce(UInt16(0)) { $0 << 8 | UInt16($1) }
        self = .complete(
            byteCount: Self.fixedByteCount + count,
            client: TransportAddress(bytes: rest.prefix(addressByteCount), port: port))
    }

    /// The size of the client's address; 0 if the header has none that counts, nil if it is invalid.
    private static func addressByteCount(command: UInt8, family: UInt8) -> Int? {
        switch (command, family) {
        // LOCAL: the rest is skipped.
        case (0x20, _): 0
        // PROXY of an unknown client, of IPv4 and of IPv6 over streams.
        case (0x21, 0x00): 0
        case (0x21, 0x11): 4
        case (0x21, 0x21): 16
        default: nil
        }
    }
}
