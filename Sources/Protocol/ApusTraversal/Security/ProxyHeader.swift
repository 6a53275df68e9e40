/// The header by which a proxy tells who its client is, before anything else on a connection: version 2 of the PROXY
/// protocol (haproxy.org, "The PROXY protocol", §2.2).
///
/// Its length is known after 16 bytes, so that who reads what is wanted, and no more, never reads a byte of the
/// client's. Type-length-values behind the addresses are passed over. Version 1, which is text, is not understood.
package enum ProxyHeader: Hashable, Sendable {
    /// So many bytes are wanted, counted from the connection's first one.
    case incomplete(wanted: Int)
    /// The header is these bytes. The client is nil if the proxy speaks for itself (a health check), or does not
    /// know an address: that of the connection counts then.
    case complete(byteCount: Int, client: TransportAddress?)
    /// No header, or one for something that is no stream: the connection is to be closed.
    case invalid

    /// The longest header that is taken, in bytes.
    package static let byteCountMax = 2_048
    private static let fixedByteCount = 16
    private static let signature: [UInt8] = [0x0D, 0x0A, 0x0D, 0x0A, 0, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A]

    /// Reads what came of a connection so far.
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

    /// Bytes of the client's address; 0 if the header has none that counts, nil for what is not valid.
    private static func addressByteCount(command: UInt8, family: UInt8) -> Int? {
        switch (command, family) {
        // LOCAL: whatever follows is passed over.
        case (0x20, _): 0
        // PROXY of an unknown client, of IPv4 and of IPv6 over streams.
        case (0x21, 0x00): 0
        case (0x21, 0x11): 4
        case (0x21, 0x21): 16
        default: nil
        }
    }
}
