import Testing

/// `==` of `String` and its hash take two Unicode normalizations of a text for the same. Where a text is a name, a key
/// or a value that others choose, it is compared with `isExactly`, or is an `ExactText`.
@Suite("Tidy: texts of others are compared by their bytes")
struct TextTests {
    /// Why the keys of a file's dictionaries and sets cannot be two normalizations of a text, or why that is harmless.
    private static let reasons: [(reason: String, files: [String])] = [
        (
            "names of our own: keys, metrics, requests, messages, tables",
            [
                "ApusContract/API/FirmwareRequests.swift", "ApusContract/API/FieldRule.swift",
                "ApusContract/API/ClientRequestMessage.swift", "ApusHTTP/RESTResponder.swift",
                "ApusHTTP/RequestMetrics.swift", "Prometheus/PrometheusMetrics.swift",
                "Documents/OpenAPIDocument.swift", "Documents/AsyncAPIDocument.swift",
                "Documents/ProtoSchemas.swift", "ApusClientAPI/ClientAPI.swift", "API/RecordingRequests.swift",
                "Topics/TopicService.swift",
                "ApusThings/ThingService.swift", "Metrics/MetricCatalogue.swift", "ApusCore/LogLimiter.swift",
                "ApusConfiguration/ConfigurationReader.swift", "SQLite/RecordTables.swift",
                "SQLite/RecordHeadMemory.swift", "Commit/RecordBatchStateMachine.swift",
                "Memory/MemoryRecordTables.swift", "Records/RecordCollection.swift", "Postgres/PostgresTables.swift",
                "Records/SessionRecords.swift", "Push/PushRegistration.swift",
                "ApusEvents/EventService.swift", "ApusClientAPI/AuditTarget.swift",
                "ApusNodeConfiguration/ProgramServices.swift",
            ]
        ),
        (
            "identifiers, and topics, calls and keys that are made of them: letters, digits and signs of ASCII",
            [
                "Session/ClientSession.swift", "Session/OpenCalls.swift",
                "Topics/TopicEdgeStateMachine.swift",
                "Topics/ClientEventQueue.swift", "ApusSessions/IdentityMemory.swift", "Tokens/RevocationList.swift",
                "ApusSessions/EdgeSessionStateMachine.swift", "Records/WithdrawalRecords.swift",
                "Records/RevocationRecord.swift", "ApusEvents/HookCache.swift", "ApusFirmware/FirmwareRecords.swift",
                "Model/FirmwareLanguage.swift", "Model/FirmwareRollout.swift", "ApusFirmware/FirmwareGroups.swift",
                "Push/CallService+Push.swift", "Push/CallPushQueue.swift", "ApusAnswering/AnsweringService.swift",
                "Actors/EntityHost.swift", "ApusOutgoing/WebhookQueueStateMachine.swift",
                "Commands/CommandLedger.swift", "Commands/DeviceCommands.swift", "ApusDevice/DeviceSettings.swift",
                "ApusTransport/CertificateFacts.swift",
                "Products/ProductCache.swift", "ApusSessions/SessionService.swift", "ApusCalls/CallService.swift",
                "ApusAnswering/AnsweringRecords+Shares.swift", "ApusClientAPI/AuditLog.swift",
                "ApusEvents/EventService+Failed.swift", "ApusDialogs/DialogService.swift", "Home/VoiceHome.swift",
                "Rooms/ArbitrationStateMachine.swift", "Voice/FocusStateMachine.swift",
                "Understanding/UserSentences.swift",
            ]
        ),
        (
            "names of parameters of RTSP and SDP, which are ASCII; a camera that uses others is not understood",
            ["Cameras/CameraCredentials.swift", "Cameras/SessionDescription.swift"]
        ),
        (
            "user names of the relay, which are normalized first (RFC 8265 §4.2)",
            [
                "Security/StaticUsers.swift", "Turn/TurnServerStateMachine.swift",
                "Turn/TurnServerStateMachine+Users.swift", "ApusRelayService/RelayMesh.swift",
                "Control/RelayMail.swift",
                "Limits/RateShares.swift", "Limits/UserAccounts.swift", "Mirrors/RelayRoster.swift",
            ]
        ),
        (
            "texts of this process, its environment and its program",
            [
                "Session/ApusApp.swift", "Session/CallCenter.swift", "Local/LocalWrite.swift",
                "ApusRelayNode/RelayNodeConfiguration.swift", "ApusNodeConfiguration/NodeConfiguration.swift",
                "Control/ServiceNotifier.swift",
            ]
        ),
        (
            "two orders that are taken for one only wait for each other",
            ["ApusClientAPI/ClientCallsStateMachine.swift"]
        ),
    ]

    private static let judged = SourceTree.sources.filter {
        !$0.path.hasPrefix("Sources/Command/") && !$0.path.hasPrefix("Sources/Testing/")
    }

    private static func hasTextAsKey(_ code: Substring) -> Bool {
        code.contains("String")
            && code.contains(
                #/(?:\[|Dictionary<|OrderedDictionary<|Set<|Limiter<|Cache<)String(?: *:|,|>)/#)
    }

    /// Members that have what people, devices or integrators have written; in the models of devices also names and
    /// values.
    private static func comparesText(_ code: Substring, isModel: Bool) -> Bool {
        guard code.contains(" == ") || code.contains(" != ") else { return false }
        let members = code.contains(
            #/\.(?:json|schema|manifest|text|detail|title)\)? [=!]= /#)
        let others = code.contains(
            #/[=!]= [A-Za-z0-9_.?]*\.(?:json|schema|manifest|text|detail|title)\b/#)
        return members || others || isModel && code.contains(#/\.(?:name|value|reported) [=!]= (?!Self\.|\.|nil\b)/#)
    }

    private static func breaches(of file: SourceTree.File) -> [String] {
        let isKnown = reasons.contains { $0.files.contains { file.path.hasSuffix("/\($0)") } }
        let isModel = file.path.contains("/ApusThings/")
        var breaches: [String] = []
        for (index, line) in file.lines.enumerated() {
            let code = line.drop { $0 == " " }
            guard !code.hasPrefix("//") else { continue }
            if !isKnown, hasTextAsKey(code) {
                breaches.append("\(file.path):\(index + 1) has String as a key: use ExactText, or say why not")
            }
            if comparesText(code, isModel: isModel) {
                breaches.append("\(file.path):\(index + 1) compares a text of others: use isExactly")
            }
        }
        return breaches
    }

    @Test("No text of others is a key, or is compared, as a String")
    func texts() {
        for breach in Self.judged.flatMap(Self.breaches) { Issue.record("\(breach)") }
    }

    @Test("Every file with a reason has such keys")
    func reasons() {
        for file in Self.reasons.flatMap(\.files) {
            let found = Self.judged.filter { $0.path.hasSuffix("/\(file)") }
            #expect(found.count == 1, "\(file) is \(found.map(\.path))")
            #expect(found.contains { $0.lines.contains(where: Self.hasTextAsKey) }, "\(file) has no String as a key")
        }
    }

    @Test(
        "A breach is found",
        arguments: [
            "    private var rooms: [String: Room] = [:]", "    var seen: Set<String> = []",
            "        guard found.body.schema == schema else { return }", "        if new != old.json { save() }",
            "        let index = members.firstIndex { $0.name == name }", "        if leaf.value != before.value {",
        ])
    func breach(line: String) {
        let file = SourceTree.File(path: "Sources/Services/ApusThings/Example.swift", text: line)
        #expect(Self.breaches(of: file).count == 1)
    }
}
