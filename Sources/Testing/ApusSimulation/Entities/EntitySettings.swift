import ApusCluster
import ApusCore

/// The numbers of a run of entities, drawn from its seed.
struct EntitySettings {
    /// Entities of each kind.
    var entityCount = 6
    /// The shards that they belong to.
    var shardCount = 8
    var clientCount = 4
    /// A client's longest pause between two requests, in milliseconds.
    var pauseMax = 60
    /// How long a client waits for an answer before it sends its request again, in milliseconds.
    var timeout = 150...900
    var replication = ReplicaConfiguration()
    var replicatedReminders = ReminderStateMachine.Configuration()
    var recordedReminders = ReminderStateMachine.Configuration.records
    var outbox = OutboxStateMachine.Configuration()
    /// The share of steps and reads that the record store's client reports as failed while the store is up. Every
    /// second of these steps is made nevertheless.
    var recordFailureRate = 0.0
    /// If true, what a promotion or a load returns is compared with everything acknowledged.
    var checksEachOwner = true

    init(profile: SimulationProfile, random: inout SeededRandom) {
        replication.messageByteCountMax = [600, 4096, 256 << 10][Int(random.next() % 3)]
        replication.messageCountMax = 1 + Int(random.next() % 4)
        replication.laneCount = 1 + replication.messageCountMax % 3
        replication.resendAfter = .milliseconds([40, 250][Int(random.next() % 2)])
        replication.confirmTimeout = .milliseconds([300, 1000, 5000][Int(random.next() % 3)])
        replicatedReminders.loadedCountMax = 1_000_000
        recordedReminders.loadedCountMax = [6, 10_000][Int(random.next() % 2)]
        recordedReminders.horizon = [2_000, 60_000][Int(random.next() % 2)]
        replicatedReminders.horizon = recordedReminders.horizon
        outbox.retryDelayMax = .milliseconds(500)
        outbox.rereadInterval = .seconds(1)
        guard profile == .entities else { return }
        recordFailureRate = [0, 0.02, 0.1][Int(random.next() % 3)]
    }

    /// Ten thousand entities of both kinds over all shards, as many clients as keep the nodes busy.
    mutating func enlarge() {
        entityCount = 5_000
        shardCount = SimulationSettings.shardCount
        clientCount = 30
        replication = ReplicaConfiguration()
        recordedReminders = .records
        replicatedReminders = ReminderStateMachine.Configuration()
        replicatedReminders.loadedCountMax = 1_000_000
        checksEachOwner = false
    }
}
