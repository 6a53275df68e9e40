import ApusConfiguration
import ApusCore
import ApusTraversal

// The relay's listeners (`relay.addresses`, `relay.tls.addresses`).
extension RelayConfiguration {
    /// The maximum number of listeners in one list.
    private static let listenersMax = 64

    /// Reads addresses with optional ports: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:443`. The port
    /// is 0 if it is missing.
    static func listeners(
        _ reader: inout ConfigurationReader, _ key: String
    ) throws(ApusError) -> [TransportAddress] {
        try reader.values(key, countMax: listenersMax, { listener($0) }) { word in
            "addresses such as 192.0.2.1, 192.0.2.1:80, 2001:db8::1 or [2001:db8::1]:443 are expected, not '\(word)'"
        }
    }

    static func listener(_ word: String) -> TransportAddress? {
        if let address = TransportAddress(word, port: 0) { return address }
        guard let pair = HostPort(word), (1...65_535).contains(pair.port) else { return nil }
        return TransportAddress(pair.host, port: UInt16(pair.port))
    }

    /// Removes duplicates: if a listener were open twice, a client's packets could arrive at the one that does not have
    /// its state.
    static func once(_ listeners: [TransportAddress]) -> [TransportAddress] {
        var seen: Set<TransportAddress> = []
        return listeners.filter { seen.insert($0).inserted }
    }

    /// Fails with 10022 if two listeners have the same address and port: the kernel would split the clients between
    /// them.
    func checkListeners(_ reader: ConfigurationReader) throws(ApusError) {
        let plain = Set(addresses.map { $0.port == 0 ? $0.withPort(port) : $0 })
        let isNamed = !secureAddresses.isEmpty
        let key = isNamed ? "relay.tls.addresses" : "relay.tls.port"
        for listener in (isNamed ? secureAddresses : addresses.map(\.host)).map({
            $0.port == 0 ? $0.withPort(securePort) : $0
        }) {
            // Without `relay.addresses` every address of the machine uses the common port.
            guard !plain.contains(listener), !addresses.isEmpty || listener.port != port else {
                throw reader.invalid(key, "\(listener) is already a listener of relay.addresses and relay.port")
            }
        }
    }
}
