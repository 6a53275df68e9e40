package import ApusClientAPI
import ApusCluster
import ApusCommands
import ApusContract
package import ApusCore
import ApusEvents
import ApusGrammar
package import ApusSessions
package import ApusStorage
import ApusThings
import ApusTimers
import CoreMetrics
import Logging
package import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// Dialogs at this node (VA-6 to VA-9, docs/voice.md): sentences that people say to devices, effects, and replies.
///
/// A sentence goes to the node of the dialog's owner in one message. That node reads it with the home of the speaker's
/// account, and makes a plan. The dialog stores the sentence and the plan before a step begins. The ids of the steps
/// are derived from the sentence's id, so a repetition after the death of a node does nothing twice.
///
/// Concurrency model: any thread. `Mutex`es guard the limits and the grammars.
package final class DialogService: NodeService, Service, RelationObserver {
    package static let name = "Dialogs"
    package static let records = VoiceHomeRecords.catalogue
    /// The kind of the topics; the key is the device.
    package static let topicKind = "dialogs"
    /// The changes of a dialog that are kept, for clients that were disconnected.
    private static let retention = TopicRetention(eventsMax: 16, byteCountMax: 32 << 10)

    let configuration: DialogConfiguration
    let view: ClusterView
    let sessions: SessionService
    let homes: VoiceHomeRecords
    let devices: SessionRecords
    let things: ThingService
    let commands: CommandService
    let timers: TimerService
    let events: EventService
    /// Nil: the node has no language model.
    let guest: GuestModel?
    let topics: TopicService
    let log: Logger
    let entities: EntityRegistry
    private let grammars = Mutex(RecentCache<GrammarKey, (version: GrammarVersion, grammar: Grammar)>(countMax: 64))
    /// The sentences of the operator, and how often they were read.
    private let userSentences: Mutex<(sentences: UserSentences, reads: UInt64)>
    private let rates: Mutex<RateLimiter<String>>
    /// The accounts of the sentences that this node carries out, by device and id.
    let inProgress = Mutex<[String: String]>([:])
    private let orders = WorkQueue<DialogWork>(countMax: DialogService.workMax)
    private let changes = WorkQueue<DialogWork>(countMax: DialogService.workMax)
    private let ducks = WorkQueue<DialogDuck>(countMax: DialogService.workMax)
    /// The connections of devices that have synchronized their dialogs.
    let synchronized = SynchronizedConnections()
    let said = Counter(label: "apus_dialog_sentences_total", dimensions: [("result", "understood")])
    let notUnderstood = Counter(label: "apus_dialog_sentences_total", dimensions: [("result", "not_understood")])
    let wonWakes = Counter(label: "apus_dialog_wakes_total", dimensions: [("result", "won")])
    let lostWakes = Counter(label: "apus_dialog_wakes_total", dimensions: [("result", "lost")])
    let yieldedWakes = Counter(label: "apus_dialog_wakes_total", dimensions: [("result", "yielded")])
    let aloneWakes = Counter(label: "apus_dialog_wakes_total", dimensions: [("result", "alone")])
    let asked = Counter(label: "apus_dialog_interceptions_total", dimensions: [("result", "answered")])
    let askedInVain = Counter(label: "apus_dialog_interceptions_total", dimensions: [("result", "failed")])
    private let runningGauge = Gauge(label: "apus_dialogs_running")

    /// The most requests of dialogs that wait for a task. A dropped request is repeated by its dialog.
    private static let workMax = 4096
    /// Those that are carried out at once.
    private static let workersMax = 64
    /// The rooms to which directives are sent at once.
    private static let duckersMax = 16
    private static let lookInterval = Duration.milliseconds(500)
    private static let rightsTimeout = Duration.seconds(1)

    private struct GrammarKey: Hashable {
        let account: String
        let language: DialogLanguage
        /// Without the sentences of the operator.
        let isOwn: Bool
    }

    /// What a grammar was made of.
    struct GrammarVersion: Hashable, Sendable {
        let home: UInt64
        let sentences: UInt64
    }

    package init(_ configuration: DialogConfiguration, of node: NodeContext) throws(ApusError) {
        (self.configuration, view, entities) = (configuration, node.view, node.entities)
        (sessions, topics, log) = (node.sessions, node.topics, node.log)
        (homes, devices) = (VoiceHomeRecords(node.records), SessionRecords(node.records))
        (things, commands) = (try node.ports.one(ThingService.self), try node.ports.one(CommandService.self))
        timers = try node.ports.one(TimerService.self)
        events = try node.ports.one(EventService.self)
        guest = try GuestModel(configuration.guest, log: node.log)
        userSentences = Mutex((try Self.userSentences(configuration, log: node.log), 0))
        let perMinute = configuration.sentencesPerMinute
        rates = Mutex(RateLimiter(perMinute, per: .seconds(60), burst: perMinute))
        node.runtime.register(DialogKind(configuration, node: view.local.name).definition)
        registerRooms()
        node.dispatcher.on(DialogRun.self) { [weak self] _, message throws(ApusError) in
            guard let self else { throw ApusError(.shuttingDown) }
            return try await run(message)
        }
        node.dispatcher.onOwnTell(DialogWork.self) { [orders, changes] message in
            (message.hasTurn ? orders : changes).add(message)
        }
        node.ports.provide(self)
        node.ports.provide(self, as: (any RelationObserver).self)
    }

    package var work: [any Service] { [self] + [guest].compactMap(\.self) }

    func ref(_ device: DeviceID) -> EntityRef<EntityCell<DialogState>> {
        entities.ref(EntityCell<DialogState>.self, EntityAddress(kind: .dialogs, key: device.rawValue))
    }

    // MARK: - At the node of the client

    /// Says a sentence to a device, and returns its turn with the reply.
    ///
    /// - Throws: 10002 for a sentence that is too long, 10007 over a limit, 10030 if it was heard by a listening that
    ///   is over; otherwise as ``access(to:_:)``.
    func say(
        _ text: String, id: String, to device: DeviceID, language: String, context: String, heard: String,
        _ call: ClientCall
    ) async throws(ApusError) -> DialogTurn {
        guard text.utf8.count <= DialogConfiguration.textByteCountMax else {
            throw ApusError(
                .frameTooLarge, "a sentence has at most \(DialogConfiguration.textByteCountMax) bytes")
        }
        if !language.isEmpty { _ = try DialogLanguage(checking: language) }
        let context = try SkillEvent.context(context)
        let access = try await access(to: device, call.session)
        try takeTurn(of: call.session.account)
        let authority = Authority(call.session)
        var message = DialogRun.with {
            ($0.device, $0.id, $0.text, $0.language) = (device.rawValue, id, text, language)
            ($0.dataSinceMs, $0.context, $0.heard) = (access.dataSince, context, heard)
            $0.speaker = DialogSpeaker(authority)
            $0.speaker.isDevice = call.session.device != nil
        }
        let left = try call.timeLeft()
        message.leftMs = Int64(left.milliseconds)
        let address = EntityAddress(kind: .dialogs, key: device.rawValue)
        if case .reply(let turn) = try await entities.askOwner(of: address.shard, message, timeout: left) {
            return turn
        }
        // This node is the owner's, or the owner has died: its successor knows the sentence, if it was begun.
        message.leftMs = Int64(try call.timeLeft().milliseconds)
        return try await run(message)
    }

    /// - Throws: 10007 if the account says too much.
    func takeTurn(of account: AccountID) throws(ApusError) {
        guard rates.withLock({ $0.take(account.rawValue, at: .now()) }) else {
            throw ApusError(.overloaded, "the account says too much; try again later")
        }
    }

    /// - Throws: 8002, 8003, 12001, 12004 and 20011 if the client may not talk to the device.
    func access(to device: DeviceID, _ session: Session) async throws(ApusError) -> DeviceAccess {
        try await things.access(to: device, for: session, control: true)
    }

    /// Forgets the dialog with a former account. If this fails, it is forgotten with the next sentence.
    package func related(_ device: DeviceID, _ change: DeviceRelationChange, before: DeviceRecord?) async {
        guard change.endsRights(before: before), let since = (try? await devices.record(of: device))?.dataSince,
            since > 0
        else { return }
        let enter = DialogEnter.with { $0.dataSinceMs = since }
        _ = try? await ref(device).ask(enter, timeout: Self.rightsTimeout)
    }

    // MARK: - At the node of the owner

    /// How a sentence is read: with the home of the speaker's account.
    func reader(
        of language: String, _ account: AccountID, _ device: DeviceID, lastReply: String
    ) async throws(ApusError) -> SentenceReader {
        let home = try await homes.home(of: account)
        let language = DialogLanguage(language.isEmpty ? home.content.language : language)
        var reader = SentenceReader(
            home: home, grammar: try await grammar(of: home, account, language), language: language, speaker: device,
            now: view.clock.wallMilliseconds(), lastReply: lastReply)
        // The calls of a model are sentences of Apus.
        if guest != nil, home.content.model, language != .english || reader.grammar.templates.isExtended {
            reader.guestGrammar = try await grammar(of: home, account, .english, isOwn: true)
        }
        return reader
    }

    private func grammar(
        of home: VoiceHome, _ account: AccountID, _ language: DialogLanguage, isOwn: Bool = false
    ) async throws(ApusError) -> Grammar {
        let key = GrammarKey(account: account.rawValue, language: language, isOwn: isOwn)
        let (user, reads) = userSentences.withLock { $0 }
        let version = GrammarVersion(home: home.content.revision, sentences: reads)
        if let known = grammars.withLock({ $0[key] }), known.version == version { return known.grammar }
        let grammar = try await offEventLoop { () throws(ApusError) in
            let own = try DialogTemplates.sentences(of: language)
            return try Grammar(isOwn ? own : user.templates[language] ?? own, lists: home.lists)
        }
        grammars.withLock { $0[key] = (version, grammar) }
        return grammar
    }

    /// How often the sentences of the operator were read.
    var sentencesVersion: UInt64 { userSentences.withLock(\.reads) }

    private static func userSentences(
        _ configuration: DialogConfiguration, log: Logger
    ) throws(ApusError) -> UserSentences {
        guard !configuration.templates.isEmpty else { return UserSentences() }
        let sentences = try UserSentences(
            folder: configuration.templates, replaced: configuration.replacedLanguages)
        let counts = sentences.counts.sorted { $0.key < $1.key }.map { "\($0.key): \($0.value)" }
        log.notice(
            "The node has read the sentences of dialogs.templates",
            metadata: ["apus.sentences": "\(counts.joined(separator: ", "))"])
        if !sentences.unknownIntents.isEmpty {
            log.warning(
                "Sentences of intents that dialogs do not have are left out",
                metadata: ["apus.intents": "\(sentences.unknownIntents.joined(separator: ", ").prefix(2_000))"])
        }
        return sentences
    }

    /// Reads the sentences of the operator again.
    package func prepareReload() async throws(ApusError) -> @Sendable () -> Void {
        let sentences = try await offEventLoop { [configuration, log] () throws(ApusError) in
            try Self.userSentences(configuration, log: log)
        }
        return { [self] in userSentences.withLock { $0 = (sentences, $0.reads + 1) } }
    }

    /// Publishes changes and continues interrupted sentences until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                for queue in [self.orders, self.changes] {
                    group.addTask { await queue.run(atMost: Self.workersMax) { await self.perform($0) } }
                }
                group.addTask { await self.ducks.run(atMost: Self.duckersMax) { await self.perform($0) } }
                group.addTask { await self.measure() }
            }
        }
    }

    private func measure() async {
        while (try? await Task.sleep(for: Self.lookInterval)) != nil {
            runningGauge.record(inProgress.withLock(\.count))
        }
    }

    private func perform(_ message: DialogWork) async {
        guard let device = DeviceID(rawValue: message.device) else { return }
        do throws(ApusError) {
            guard !message.hasTurn else {
                _ = try await carryOut(message.turn, of: device, waits: false)
                return
            }
            for change in message.changes {
                if let duck = duck(change, device) { ducks.add(duck) }
                try await publish(change, of: device, message.dataSinceMs)
            }
            try? ref(device).tell(DialogPublished.with { $0.versions = message.changes.map(\.version) })
        } catch {
            // The dialog repeats the request.
            log.debug("A dialog is not carried on", metadata: Logger.facts(of: error))
        }
    }

    private func publish(
        _ change: DialogChange, of device: DeviceID, _ dataSince: UInt64
    ) async throws(ApusError) {
        let topic = ClientTopic(kind: Self.topicKind, key: device.rawValue)
        guard topic.description.utf8.count <= ClientTopic.byteCountMax else { return }
        let event = ClientDialogChanged.with {
            ($0.device, $0.version, $0.previousVersion) = (device.rawValue, change.version, change.previousVersion)
            $0.phases = change.phases.map { ClientDialogPhase($0) }
            ($0.turn, $0.listening) = (ClientDialogTurn(change.turn), change.listening.id)
        }
        try await topics.publish(
            event, to: topic, version: change.version, after: change.previousVersion, generation: dataSince)
    }

    // MARK: - Requests

    /// Registers the requests, and the topics of dialogs.
    package func add(to api: inout ClientAPI) {
        api.addSchemas(dialogSchemas)
        api.add(
            PublishedTopics(
                Self.topicKind, "What is said to a device, and replied; the key is the device's id.",
                events: [ClientEventKind(ClientDialogChanged.self)], retention: Self.retention,
                generation: { [self] key, session throws(ApusError) -> UInt64 in
                    guard session.allowedDevices == nil else {
                        throw ApusError(.notAllowed, "the token is for certain devices only")
                    }
                    return try await access(to: try DeviceID(checking: key, "the device's id"), session).dataSince
                }, on: topics))
        addRequests(to: &api)
    }
}
