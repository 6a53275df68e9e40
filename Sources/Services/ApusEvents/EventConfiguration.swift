/// The bounds of events and hooks (D13, IV-D10, IV-D12, docs/events.md).
package struct EventConfiguration: Sendable, Hashable {
    /// Events that a device may report in a minute, and at once; one more is refused with 10007. Key
    /// `events.per_minute`.
    package var perMinute = 60
    /// Hosts that integrators may name in the URLs of their hooks: a name, or `*.` and a domain. Addresses and networks
    /// are those to which such names may lead besides public ones. An operator may name any host. Key `hooks.hosts`.
    package var hosts: [String] = []
    /// A file with the certificates that `https` is checked against; nil for those of the system. Key
    /// `hooks.authority_file`.
    package var authorityFile: String?
    /// Hooks of one customer; one more is refused with 10007. Key `hooks.count_max`.
    package var hooksMax = 8
    /// Events that wait for one hook; a further one is dropped. An account has an eighth, and more while at least as
    /// much as it has is free. An eighth is for alarms only. Key `hooks.queue_max`.
    package var queueMax = 100_000
    /// Bytes of the events that wait for one hook, shared as their number is. Key `hooks.queue_bytes_max`.
    package var queueByteCountMax = 64 << 20
    /// An event that waits for longer is dropped. Key `hooks.keep_time`.
    package var keepTime = Duration.seconds(3 * 86_400)
    /// Events of one hook that were refused by the endpoint and put aside, shared as those that wait are; a further one
    /// is dropped. Key `hooks.failed_max`.
    package var failedMax = 1000
    /// How long an endpoint may take to take events. Key `hooks.timeout`.
    package var timeout = Duration.seconds(10)
    /// Raw data that wait for an answer at this node: of all, half of it for each customer and an eighth for each
    /// account; 10007 beyond. Key `hooks.sending_max`.
    package var sendingMax = 256

    /// Events of one request to an endpoint.
    package static let batchMax = 32
    /// Statuses by which an endpoint refuses the events themselves (RFC 9110 §15.5, RFC 4918 §11.2). Any other than 2xx
    /// asks for another attempt: the endpoint may be out of order, or not be there yet.
    package static let refusals: Set<Int> = [400, 413, 415, 422]
    /// The longest JSON of an event that a device reports or an operator sends.
    package static let jsonByteCountMax = 4 << 10
    /// The longest data to a server and from it (IV-D12).
    package static let dataByteCountMax = 30_000
    /// The longest time for which a server may work.
    package static let answerTimeMax = Duration.seconds(60)
    /// For how long requests are signed with the former secret, too.
    package static let formerSecretTime: Int64 = 86_400
    /// The longest URL of a hook.
    package static let urlByteCountMax = 1024

    package init() {}

    /// Whether an integrator may name the host.
    package func allows(host: String) -> Bool {
        let host = host.lowercased()
        return hosts.contains { pattern in
            let pattern = pattern.lowercased()
            return pattern.hasPrefix("*.") ? host.hasSuffix(pattern.dropFirst()) : host == pattern
        }
    }
}
