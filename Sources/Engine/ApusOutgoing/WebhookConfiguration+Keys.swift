package import ApusConfiguration
package import ApusCore

extension WebhookConfiguration {
    /// Reads the keys under `push.`. Throws 10022 for an invalid value.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        func path(_ key: String) throws(ApusError) -> String? {
            let path = try reader.path(key, default: "")
            return path.isEmpty ? nil : path
        }
        let url = try reader.string("push.webhook_url", default: "")
        guard url.isEmpty || url.hasPrefix("http://") || url.hasPrefix("https://") else {
            throw reader.invalid("push.webhook_url", "http://… or https://… is expected")
        }
        self.url = url.isEmpty ? nil : url
        secretFile = try path("push.webhook_secret_file")
        authorityFile = try path("push.webhook_authority_file")
        spoolDirectory = try path("push.spool_directory")
        spoolMax = try reader.int("push.spool_max", default: spoolMax, in: 1...1_000_000)
        timeout = try reader.duration("push.webhook_timeout", default: timeout)
        guard (.milliseconds(100) ... .seconds(60)).contains(timeout) else {
            throw reader.invalid("push.webhook_timeout", "100ms to 60s are expected")
        }
        queue.countMax = try reader.int("push.queue_max", default: queue.countMax, in: 1...65_536)
        queue.sendingMax = try reader.int("push.sending_max", default: queue.sendingMax, in: 1...256)
    }
}
