import ApusClientAPI
package import ApusConfiguration
package import ApusCore

extension CommandConfiguration: ServiceConfiguration {
    /// Reads the keys under `commands.`.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        openMax = try reader.int("commands.open_max", default: openMax, in: 1...1024)
        openByteCountMax = try reader.bytes("commands.open_bytes_max", default: openByteCountMax)
        // With what has ended it is one record.
        guard (32 << 10...160 << 10).contains(openByteCountMax) else {
            throw reader.invalid("commands.open_bytes_max", "32KiB to 160KiB are expected")
        }
        readsMax = try reader.int("commands.reads_max", default: readsMax, in: 1...64)
        sentMax = try reader.int("commands.sent_max", default: sentMax, in: 1...64)
        ttlMax = try reader.duration("commands.ttl_max", default: ttlMax)
        resendAfter = try reader.duration("commands.resend_after", default: resendAfter)
        answerTime = try reader.duration("commands.answer_time", default: answerTime)
        endedMax = try reader.int("commands.ended_max", default: endedMax, in: 1...64)
        endedTime = try reader.duration("commands.ended_time", default: endedTime)
        guard (.seconds(1) ... .seconds(31_536_000)).contains(ttlMax), resendAfter >= .milliseconds(100),
            (.seconds(1) ... .seconds(31_536_000)).contains(answerTime),
            (.seconds(60) ... .seconds(31_536_000)).contains(endedTime)
        else {
            throw reader.invalid(
                "commands.ttl_max",
                "1s to 8760h is expected, as of answer_time; ended_time: from 1m; resend_after: from 100ms")
        }
    }
}
