import ApusClientAPI
package import ApusConfiguration
package import ApusCore
import ApusTraversal

extension EventConfiguration: ServiceConfiguration {
    /// Reads the keys under `events.` and `hooks.`.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        perMinute = try reader.int("events.per_minute", default: perMinute, in: 1...60_000)
        hosts = try reader.values("hooks.hosts", countMax: 256) { word in
            let name = word.hasPrefix("*.") ? word.dropFirst(2) : word[...]
            let isName = !name.isEmpty && name.utf8.count <= 253 && !name.contains { "*/:@ ".contains($0) }
            return isName || Self.isNetwork(word) ? word : nil
        } _: {
            "\($0) is not the name of a host, *. and a domain, an address, or a network such as 10.0.0.0/8"
        }
        let file = try reader.path("hooks.authority_file", default: "")
        authorityFile = file.isEmpty ? nil : file
        hooksMax = try reader.int("hooks.count_max", default: hooksMax, in: 1...64)
        queueMax = try reader.int("hooks.queue_max", default: queueMax, in: 1...10_000_000)
        queueByteCountMax = try reader.bytes("hooks.queue_bytes_max", default: queueByteCountMax)
        guard (1 << 20...1 << 40).contains(queueByteCountMax) else {
            throw reader.invalid("hooks.queue_bytes_max", "1MiB to 1024GiB are expected")
        }
        failedMax = try reader.int("hooks.failed_max", default: failedMax, in: 1...10_000)
        keepTime = try reader.duration("hooks.keep_time", default: keepTime)
        guard (.seconds(1) ... .seconds(30 * 86_400)).contains(keepTime) else {
            throw reader.invalid("hooks.keep_time", "1s to 720h are expected")
        }
        timeout = try reader.duration("hooks.timeout", default: timeout)
        guard (.milliseconds(100) ... .seconds(60)).contains(timeout) else {
            throw reader.invalid("hooks.timeout", "100ms to 60s are expected")
        }
        sendingMax = try reader.int("hooks.sending_max", default: sendingMax, in: 8...65_536)
    }

    /// True for a network without host bits, such as 10.0.0.0/8 or fd00::/8. A single address is a network as well.
    package static func isNetwork(_ word: String) -> Bool {
        guard !word.hasPrefix("["), let rule = PeerRule(word) else { return false }
        return !rule.isOfSomePorts
    }
}
