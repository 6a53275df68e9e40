import ApusCluster
import ApusConfiguration
import ApusCore

extension ReplicaConfiguration {
    /// Reads the keys under `replication.`. The number of lanes is that of the transport. Throws 10022.
    mutating func read(_ reader: inout ConfigurationReader, laneCount: Int) throws(ApusError) {
        self.laneCount = laneCount
        let d = self
        stateByteCountMax = try reader.bytes("replication.state_bytes_max", default: d.stateByteCountMax)
        guard (1 << 10...1 << 20).contains(stateByteCountMax) else {
            throw reader.invalid("replication.state_bytes_max", "1KiB to 1MiB are expected")
        }
        shardEntityCountMax = try reader.int(
            "replication.shard_entities_max", default: d.shardEntityCountMax, in: 1...10_000_000)
        shardByteCountMax = try reader.bytes("replication.shard_bytes_max", default: d.shardByteCountMax)
        entityCountMax = try reader.int("replication.entities_max", default: d.entityCountMax, in: 1...100_000_000)
        byteCountMax = try reader.bytes("replication.bytes_max", default: d.byteCountMax)
        waitingCountMax = try reader.int("replication.waiting_max", default: d.waitingCountMax, in: 1...1_000_000)
        waitingByteCountMax = try reader.bytes("replication.waiting_bytes_max", default: d.waitingByteCountMax)
        nodeWaitingByteCountMax = try reader.bytes(
            "replication.node_waiting_bytes_max", default: d.nodeWaitingByteCountMax)
        messageByteCountMax = try reader.bytes("replication.message_bytes_max", default: d.messageByteCountMax)
        guard (4 << 10...2 << 20).contains(messageByteCountMax) else {
            throw reader.invalid("replication.message_bytes_max", "4KiB to 2MiB are expected")
        }
        messageCountMax = try reader.int("replication.messages_max", default: d.messageCountMax, in: 1...64)
        windowByteCount = try reader.bytes("replication.window_bytes", default: d.windowByteCount)
        resendAfter = try reader.duration("replication.resend_after", default: d.resendAfter)
        retryDelay = try reader.duration("replication.retry_delay", default: d.retryDelay)
        guard windowByteCount >= messageByteCountMax else {
            throw reader.invalid("replication.window_bytes", "at least replication.message_bytes_max is expected")
        }
        guard resendAfter >= .milliseconds(20), retryDelay >= .milliseconds(1) else {
            throw reader.invalid("replication.resend_after", "at least 20ms is expected; replication.retry_delay: 1ms")
        }
        confirmTimeout = try reader.duration("replication.confirm_timeout", default: d.confirmTimeout)
    }
}
