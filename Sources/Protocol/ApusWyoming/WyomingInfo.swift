import ApusCore

/// `info`: what a provider has, the answer to `describe`. Services other than these four are ignored.
///
/// Pure value.
package struct WyomingInfo: Sendable, Equatable {
    /// The most programs of a service.
    package static let programCountMax = 32
    /// The most models of a program. A provider of speech has some hundred voices.
    package static let modelCountMax = 1024
    /// The most languages of a model.
    package static let languageCountMax = 256

    /// What exists once in a provider: a service's program, a model, or a voice.
    package struct Artifact: Sendable, Equatable {
        package var name: String
        package var description: String?
        package var version: String?
        /// Who made it, and an address.
        package var attribution: (name: String, url: String)
        package var isInstalled: Bool

        package init(
            name: String, description: String? = nil, version: String? = nil,
            attribution: (name: String, url: String) = ("", ""), isInstalled: Bool = true
        ) {
            (self.name, self.description, self.version) = (name, description, version)
            (self.attribution, self.isInstalled) = (attribution, isInstalled)
        }

        package static func == (left: Self, right: Self) -> Bool {
            left.name.isExactly(right.name) && left.description == right.description && left.version == right.version
                && left.attribution == right.attribution && left.isInstalled == right.isInstalled
        }
    }

    /// A model of a recognizer, a voice, a model of a handler, or a wake word.
    package struct Model: Sendable, Equatable {
        package var artifact: Artifact
        package var languages: [String]
        /// What a wake word is said like.
        package var phrase: String?
        /// The speakers of a voice.
        package var speakers: [String]

        package init(
            _ artifact: Artifact, languages: [String], phrase: String? = nil, speakers: [String] = []
        ) {
            (self.artifact, self.languages, self.phrase, self.speakers) = (artifact, languages, phrase, speakers)
        }
    }

    /// A program of a service.
    package struct Program: Sendable, Equatable {
        package var artifact: Artifact
        package var models: [Model]
        /// True if it streams: chunks of transcripts, of texts to speak, or of answers.
        package var isStreaming: Bool
        /// True for a handler that carries out what was said, and does not only answer.
        package var controlsHome: Bool

        package init(
            _ artifact: Artifact, models: [Model], isStreaming: Bool = false, controlsHome: Bool = false
        ) {
            (self.artifact, self.models) = (artifact, models)
            (self.isStreaming, self.controlsHome) = (isStreaming, controlsHome)
        }
    }

    /// A kind of service.
    package enum Service: String, Sendable, CaseIterable {
        case recognition = "asr"
        case speech = "tts"
        case handling = "handle"
        case wake

        var modelsName: String { self == .speech ? "voices" : "models" }

        var streamingName: String? {
            switch self {
            case .recognition: "supports_transcript_streaming"
            case .speech: "supports_synthesize_streaming"
            case .handling: "supports_handled_streaming"
            case .wake: nil
            }
        }
    }

    package var recognition: [Program]
    package var speech: [Program]
    package var handling: [Program]
    package var wake: [Program]

    package init(
        recognition: [Program] = [], speech: [Program] = [], handling: [Program] = [], wake: [Program] = []
    ) {
        (self.recognition, self.speech) = (recognition, speech)
        (self.handling, self.wake) = (handling, wake)
    }

    package subscript(service: Service) -> [Program] {
        get {
            switch service {
            case .recognition: recognition
            case .speech: speech
            case .handling: handling
            case .wake: wake
            }
        }
        set {
            switch service {
            case .recognition: recognition = newValue
            case .speech: speech = newValue
            case .handling: handling = newValue
            case .wake: wake = newValue
            }
        }
    }

    init(_ fields: WyomingFields) throws(ApusError) {
        self.init()
        for service in Service.allCases {
            for element in try fields.elements(service.rawValue, countMax: Self.programCountMax) {
                self[service].append(try Program(WyomingFields(element), service))
            }
        }
    }

    var members: [JSONValue.Member] {
        // The other services are written empty, as the reference does.
        Service.allCases.map { service in
            JSONValue.Member(
                name: service.rawValue, value: .array(self[service].map { .object($0.members(service)) }))
        } + ["intent", "mic", "snd"].map { JSONValue.Member(name: $0, value: .array([])) }
    }
}

extension WyomingInfo.Artifact {
    init(_ fields: WyomingFields) throws(ApusError) {
        self.init(
            name: try fields.requiredText("name"), description: fields.note("description"),
            version: fields.note("version"), isInstalled: try fields.flag("installed") ?? true)
        if let value = fields["attribution"] {
            let names = try WyomingFields(value)
            attribution = (names.note("name") ?? "", names.note("url") ?? "")
        }
    }

    var members: [JSONValue.Member] {
        // The reference's reader wants every member of an artifact, also where it is null.
        [JSONValue.Member](
            fields: [
                "name": .string(name),
                "attribution": .fields([
                    "name": .string(attribution.name), "url": .string(attribution.url),
                ]),
                "installed": .bool(isInstalled), "description": description.map { .string($0) } ?? .null,
                "version": version.map { .string($0) } ?? .null,
            ])
    }
}

extension WyomingInfo.Model {
    init(_ fields: WyomingFields) throws(ApusError) {
        var speakers: [String] = []
        for element in try fields.elements("speakers", countMax: WyomingInfo.modelCountMax) {
            speakers.append(try WyomingFields(element).requiredText("name"))
        }
        self.init(
            try WyomingInfo.Artifact(fields),
            languages: try fields.texts("languages", countMax: WyomingInfo.languageCountMax),
            phrase: fields.note("phrase"), speakers: speakers)
    }

    func members(_ service: WyomingInfo.Service) -> [JSONValue.Member] {
        var members = artifact.members
        members.append(JSONValue.Member(name: "languages", value: .texts(languages)))
        if service == .wake {
            members.append(JSONValue.Member(name: "phrase", value: phrase.map { .string($0) } ?? .null))
        }
        if !speakers.isEmpty {
            let names = speakers.map { JSONValue.fields(["name": .string($0)]) }
            members.append(JSONValue.Member(name: "speakers", value: .array(names)))
        }
        return members
    }
}

extension WyomingInfo.Program {
    init(_ fields: WyomingFields, _ service: WyomingInfo.Service) throws(ApusError) {
        var models: [WyomingInfo.Model] = []
        for element in try fields.elements(service.modelsName, countMax: WyomingInfo.modelCountMax) {
            models.append(try WyomingInfo.Model(WyomingFields(element)))
        }
        var isStreaming = false
        if let name = service.streamingName { isStreaming = try fields.flag(name) ?? false }
        let controlsHome = service == .handling ? try fields.flag(Self.controlName) ?? false : false
        self.init(
            try WyomingInfo.Artifact(fields), models: models, isStreaming: isStreaming, controlsHome: controlsHome)
    }

    private static let controlName = "supports_home_control"

    func members(_ service: WyomingInfo.Service) -> [JSONValue.Member] {
        var members = artifact.members
        members.append(
            JSONValue.Member(name: service.modelsName, value: .array(models.map { .object($0.members(service)) })))
        if let name = service.streamingName {
            members.append(JSONValue.Member(name: name, value: .bool(isStreaming)))
        }
        if service == .handling {
            members.append(JSONValue.Member(name: Self.controlName, value: .bool(controlsHome)))
        }
        return members
    }
}
