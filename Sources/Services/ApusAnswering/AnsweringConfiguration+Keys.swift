import ApusClientAPI
package import ApusConfiguration
package import ApusCore
import ApusStorage

extension AnsweringConfiguration: ServiceConfiguration {
    /// Reads the keys under `answering.`. By default, messages may use a quarter of the record store.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        let storeByteCountMax = try reader.bytes(
            "records.file_bytes_max", default: SQLiteLimits().fileByteCountMax)
        messagesMax = try reader.int("answering.messages_max", default: messagesMax, in: 1...500)
        messageByteCountMax = try reader.bytes("answering.message_bytes_max", default: messageByteCountMax)
        guard (64 << 10...256 << 20).contains(messageByteCountMax) else {
            throw reader.invalid("answering.message_bytes_max", "64KiB to 256MiB are expected")
        }
        byteCountMax = try reader.bytes("answering.bytes_max", default: min(byteCountMax, storeByteCountMax / 4))
        accountByteCountMax = try reader.bytes("answering.account_bytes_max", default: accountByteCountMax)
        guard (1 << 20...1 << 50).contains(byteCountMax), (1 << 20...1 << 50).contains(accountByteCountMax) else {
            throw reader.invalid("answering.bytes_max", "1MiB to 1048576GiB are expected, as for account_bytes_max")
        }
        recordingsMax = try reader.int("answering.recordings_max", default: recordingsMax, in: 1...10_000)
        storeInterval = try reader.duration("answering.store_interval", default: storeInterval)
        guard (.milliseconds(50) ... .seconds(2)).contains(storeInterval) else {
            throw reader.invalid("answering.store_interval", "50ms to 2s are expected")
        }
    }
}
