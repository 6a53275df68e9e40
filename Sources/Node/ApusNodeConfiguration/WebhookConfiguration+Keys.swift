import ApusConfiguration
import ApusCore
import ApusWebhooks

extension WebhookConfiguration {
    /// Reads the keys under `push.`.
    mutating func read(
        _ reader: inout ConfigurationReader, _ path: (String) -> String
    ) throws(ApusError) {
        func file(_ key: String) throws(ApusError) -> String? {
            let text = try reader.string(key, default: "")
            return text.isEmpty ? nil : path(text)
        }
        let url = try reader.string("push.webhook_url", default: "")
        guard url.isEmpty || url.hasPrefix("http://") || url.hasPrefix("https://") else {
            throw reader.invalid("push.webhook_url", "http://… or https://… is expected")
        }
        self.url = url.isEmpty ? nil : url
        secretFile = try file("push.webhook_secret_file")
        authorityFile = try file("push.webhook_authority_file")
        spoolDirectory = try file("push.spool_directory")
        spoolMax = try reader.int("push.spool_max", default: spoolMax, in: 1...1_000_000)
        timeout = try reader.duration("push.webhook_timeout", default: timeout)
        guard (.milliseconds(100) ... .seconds(60)).contains(timeout) else {
            throw reader.invalid("push.webhook_timeout", "100ms to 60s are expected")
        }
        queue.countMax = try reader.int("push.queue_max", default: queue.countMax, in: 1...65_536)
        queue.sendingMax = try reader.int("push.sending_max", default: queue.sendingMax, in: 1...256)
    }
}
