/// The limits of events and hooks (D13, IV-D10, IV-D12, docs/events.md).
package struct EventConfiguration: Sendable, Hashable {
    /// The most events that a device may report in a minute, and in one burst. Another one is refused with 10007. Key
    /// `events.per_minute`.
    package var perMinute = 60
    /// The hosts that integrators may name in the URLs of their hooks: a name, or `*.` and a domain. Such a name may
    /// resolve to a public address, or to an address or network that is listed here. An operator may name any host. Key
    /// `hooks.hosts`.
    package var hosts: [String] = []
    /// A file with the certificates that `https` is checked against; nil: the certificates of the system. Key
    /// `hooks.authority_file`.
    package var authorityFile: String?
    /// The most hooks of one customer. Another one is refused with 10007. Key `hooks.count_max`.
    package var hooksMax = 8
    /// The most events that wait for one hook. Another one is dropped. An account has an eighth of the places, and may
    /// use more while at least as many are free as it uses. An eighth of all places is reserved for alarms. Key
    /// `hooks.queue_max`.
    package var queueMax = 100_000
    /// The most bytes of the events that wait for one hook. They are shared between accounts as the places are. Key
    /// `hooks.queue_bytes_max`.
    package var queueByteCountMax = 64 << 20
    /// The longest time that an event waits before it is dropped. Key `hooks.keep_time`.
    package var keepTime = Duration.seconds(3 * 86_400)
    /// The most events of one hook that its endpoint refused and that are put aside. Another one is dropped. Accounts
    /// share these places as they share those of the queue. Key `hooks.failed_max`.
    package var failedMax = 1000
    /// The time in which an endpoint must answer a request with events. Key `hooks.timeout`.
    package var timeout = Duration.seconds(10)
    /// The most messages with raw data that wait for an answer at this node. A customer has half of the places, an
    /// account an eighth. Another message is refused with 10007. Key `hooks.sending_max`.
    package var sendingMax = 256

    /// The most events of one request to an endpoint.
    package static let batchMax = 32
    /// The statuses by which an endpoint refuses the events themselves (RFC 9110 §15.5, RFC 4918 §11.2). After any
    /// other status than 2xx the request is repeated: the endpoint may be out of order or not yet available.
    package static let refusals: Set<Int> = [400, 413, 415, 422]
    /// The longest JSON of an event from a device or an operator, in bytes.
    package static let jsonByteCountMax = 4 << 10
    /// The longest data to a server and from a server (IV-D12), in bytes.
    package static let dataByteCountMax = 30_000
    /// The longest time that a server may take to answer raw data.
    package static let answerTimeMax = Duration.seconds(60)
    /// The time for which requests are also signed with the previous secret, in seconds.
    package static let formerSecretTime: Int64 = 86_400
    /// The longest URL of a hook, in bytes.
    package static let urlByteCountMax = 1024

    package init() {}

    /// Whether an integrator may name this host.
    package func allows(host: String) -> Bool {
        let host = host.lowercased()
        return hosts.contains { pattern in
            let pattern = pattern.lowercased()
            return pattern.hasPrefix("*.") ? host.hasSuffix(pattern.dropFirst()) : host == pattern
        }
    }
}
