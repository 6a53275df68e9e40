// swift-tools-version: 6.2
import PackageDescription

// The manifest is the architecture: a target may import only what it lists here, and the build
// enforces it (`--explicit-target-dependency-import-check error`). Layers go from the top of this
// file to the bottom; a target depends only on targets above it. See docs/concepts.md.

let apusSettings: [SwiftSetting] = [
    .swiftLanguageMode(.v6),
    .treatAllWarnings(as: .error),
    .enableUpcomingFeature("ExistentialAny"),
    .enableUpcomingFeature("MemberImportVisibility"),
    .enableUpcomingFeature("InternalImportsByDefault"),
    .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
]

// The toolchain's own linker. The default, gold, takes ten times as long for each program.
let apusLinker: [LinkerSetting] = [.unsafeFlags(["-use-ld=lld"], .when(platforms: [.linux]))]

// Outside products, named once.
let log: Target.Dependency = .product(name: "Logging", package: "swift-log")
let coreMetrics: Target.Dependency = .product(name: "CoreMetrics", package: "swift-metrics")
let dequeModule: Target.Dependency = .product(name: "DequeModule", package: "swift-collections")
let orderedCollections: Target.Dependency = .product(name: "OrderedCollections", package: "swift-collections")
let nioCore: Target.Dependency = .product(name: "NIOCore", package: "swift-nio")
let nioPosix: Target.Dependency = .product(name: "NIOPosix", package: "swift-nio")
let nioEmbedded: Target.Dependency = .product(name: "NIOEmbedded", package: "swift-nio")
let nioWebSocket: Target.Dependency = .product(name: "NIOWebSocket", package: "swift-nio")
let nioHTTPTypes: Target.Dependency = .product(name: "NIOHTTPTypes", package: "swift-nio-extras")
let nioHTTPTypesHTTP1: Target.Dependency = .product(name: "NIOHTTPTypesHTTP1", package: "swift-nio-extras")
let nioHTTP1: Target.Dependency = .product(name: "NIOHTTP1", package: "swift-nio")
let nioTLS: Target.Dependency = .product(name: "NIOTLS", package: "swift-nio")
let protobuf: Target.Dependency = .product(name: "SwiftProtobuf", package: "swift-protobuf")
let tracing: Target.Dependency = .product(name: "Tracing", package: "swift-distributed-tracing")
let grdb: Target.Dependency = .product(name: "GRDB", package: "GRDB.swift")
let lifecycle: Target.Dependency = .product(name: "ServiceLifecycle", package: "swift-service-lifecycle")
let unixSignals: Target.Dependency = .product(name: "UnixSignals", package: "swift-service-lifecycle")
let hummingbird: Target.Dependency = .product(name: "Hummingbird", package: "hummingbird")
let hummingbirdCore: Target.Dependency = .product(name: "HummingbirdCore", package: "hummingbird")
let httpTypes: Target.Dependency = .product(name: "HTTPTypes", package: "swift-http-types")
let yams: Target.Dependency = .product(name: "Yams", package: "Yams")
let arguments: Target.Dependency = .product(name: "ArgumentParser", package: "swift-argument-parser")

/// What the compiler optimizes for. Without optimization a target compiles in a quarter to a third of the time.
enum Goal: String {
    case speed = "-O"
    case size = "-Osize"
    case compileTime = "-Onone"

    // Without flags where it is the default: a target with unsafe flags cannot be a dependency of another package.
    var settings: [SwiftSetting] { apusSettings + (self == .speed ? [] : [.unsafeFlags([rawValue])]) }
}

// `scripts/bench` sets it: the loads of benchmarks are optimized where they measure, and not where tests use them.
let isMeasuring = Context.environment["APUS_MEASURE"] != nil

func layer(
    _ layer: String, _ name: String, _ dependencies: [Target.Dependency], for goal: Goal = .speed
) -> Target {
    .target(
        name: name, dependencies: dependencies, path: "Sources/\(layer)/\(name)", swiftSettings: goal.settings)
}

/// Most tests wait, or call code that is optimized. Name `speed` for those that compute for seconds themselves.
func test(
    _ name: String, _ dependencies: [Target.Dependency], in folder: String? = nil, exclude: [String] = [],
    for goal: Goal = .compileTime
) -> Target {
    .testTarget(
        name: name, dependencies: dependencies, path: "Tests/\(folder ?? name)", exclude: exclude,
        swiftSettings: goal.settings, linkerSettings: apusLinker)
}

let package = Package(
    name: "apus",
    products: [
        .executable(name: "apus", targets: ["apus"]),
        .executable(name: "apus-bench", targets: ["apus-bench"]),
        // With the modules of what it shows: an app imports all of them with this one product.
        .library(name: "ApusClient", targets: ["ApusClient", "ApusContract", "ApusCore", "ApusMedia"]),
        .library(name: "ApusDevice", targets: ["ApusDevice"]),
    ],
    // Ranges, because an app that depends on Apus shares these packages. Our own builds take the versions of
    // scripts/lib/packages.lock (CONTRIBUTING.md).
    dependencies: [
        .package(url: "https://github.com/apple/swift-argument-parser", from: "1.8.0"),
        .package(url: "https://github.com/apple/swift-collections", from: "1.6.0"),
        .package(url: "https://github.com/apple/swift-distributed-tracing", from: "1.7.0"),
        .package(url: "https://github.com/apple/swift-http-types", from: "1.8.0"),
        .package(url: "https://github.com/apple/swift-log", from: "1.16.0"),
        .package(url: "https://github.com/apple/swift-metrics", from: "2.13.0"),
        .package(url: "https://github.com/apple/swift-nio", from: "2.101.0"),
        .package(url: "https://github.com/apple/swift-nio-extras", from: "1.35.0"),
        // Without its traits: nothing uses them, and SwiftPM names them in another order in each build, which
        // compiles it again.
        .package(url: "https://github.com/apple/swift-protobuf", from: "1.39.0", traits: []),
        .package(url: "https://github.com/groue/GRDB.swift", from: "7.10.0"),
        .package(url: "https://github.com/hummingbird-project/hummingbird", from: "2.28.0", traits: []),
        .package(url: "https://github.com/jpsim/Yams", from: "6.2.0"),
        .package(url: "https://github.com/swift-server/swift-service-lifecycle", from: "2.13.0"),
    ],
    targets: [
        // Core: values only.
        layer("Core", "ApusCore", [log, coreMetrics]),

        // Native: module maps, thin C shims, and threads beside the Swift pool.
        .target(name: "CApusMemory", path: "Sources/Native/CApusMemory"),
        .target(name: "CApusThreads", path: "Sources/Native/CApusThreads"),
        layer("Native", "ApusThreads", ["ApusCore", "CApusThreads"]),
        .systemLibrary(
            name: "CLibAV", path: "Sources/Native/CLibAV",
            pkgConfig: "libavformat libavcodec libavutil libswresample libswscale",
            providers: [
                .apt(["libavcodec-dev", "libavformat-dev", "libavutil-dev", "libswresample-dev", "libswscale-dev"])
            ]),
        .target(name: "CApusMedia", dependencies: ["CLibAV"], path: "Sources/Native/CApusMedia"),
        .systemLibrary(
            name: "CApusZstd", path: "Sources/Native/CApusZstd", pkgConfig: "libzstd",
            providers: [.apt(["libzstd-dev"])]),
        .target(
            name: "CApusTLS", path: "Sources/Native/CApusTLS",
            linkerSettings: [.linkedLibrary("ssl"), .linkedLibrary("crypto")]),
        .target(
            name: "CApusCrypto", path: "Sources/Native/CApusCrypto", linkerSettings: [.linkedLibrary("crypto")]),
        layer("Native", "ApusCrypto", ["ApusCore", "CApusCrypto"]),
        layer("Native", "ApusTLS", ["ApusCore", "ApusCrypto", "CApusTLS", nioCore, nioTLS]),
        .systemLibrary(
            name: "CApusPQ", path: "Sources/Native/CApusPQ", pkgConfig: "libpq", providers: [.apt(["libpq-dev"])]),
        layer("Native", "ApusPQ", ["ApusCore", "CApusPQ"]),
        .systemLibrary(
            name: "CApusCurl", path: "Sources/Native/CApusCurl", pkgConfig: "libcurl",
            providers: [.apt(["libcurl4-openssl-dev"])]),
        .target(name: "CApusSphinx", path: "Sources/Native/CApusSphinx"),
        layer("Native", "ApusSphinx", ["ApusCore", "CApusSphinx"]),
        .target(name: "CApusNet", path: "Sources/Native/CApusNet"),
        .target(name: "CApusNamespaces", path: "Sources/Native/CApusNamespaces"),
        .target(name: "CApusConsole", path: "Sources/Native/CApusConsole"),

        // Protocol: codecs and machines, no I/O.
        layer("Protocol", "ApusWire", ["ApusCore", nioCore, protobuf]),
        layer("Protocol", "ApusContract", ["ApusCore", "ApusWire", protobuf]),
        layer("Protocol", "ApusMedia", ["ApusCore", "ApusCrypto", nioCore, dequeModule]),
        layer("Protocol", "ApusDiagnosis", ["ApusCore", "ApusContract", protobuf]),
        layer("Protocol", "ApusTraversal", ["ApusCore", "ApusCrypto"]),
        layer("Protocol", "ApusWyoming", ["ApusCore", "ApusCrypto", nioCore]),

        // Engine: listeners, links between nodes, storage, cluster.
        layer("Engine", "ApusWyomingClient", ["ApusCore", "ApusWyoming", nioCore, nioPosix]),
        layer("Engine", "ApusWyomingServer", ["ApusCore", "ApusWyoming", nioCore, nioPosix, log]),
        layer("Engine", "ApusTracing", ["ApusCore", dequeModule, tracing]),
        layer("Engine", "ApusListener", ["ApusCore", nioCore, lifecycle, log, coreMetrics]),
        layer("Engine", "ApusConfiguration", ["ApusCore", yams]),
        layer("Engine", "ApusHTTPClient", ["ApusCore", "ApusThreads", "CApusCurl"]),
        layer(
            "Engine", "ApusOutgoing",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusHTTPClient", orderedCollections, lifecycle, log,
                coreMetrics,
            ]),
        layer(
            "Engine", "ApusObjectStore",
            ["ApusCore", "ApusCrypto", "ApusConfiguration", "ApusHTTPClient", nioCore, dequeModule, coreMetrics]),
        layer(
            "Engine", "ApusRecordingLog",
            ["ApusCore", "ApusCrypto", "ApusThreads", "ApusMedia", "CApusMemory", nioCore, dequeModule]),
        layer(
            "Engine", "ApusTransport",
            [
                "ApusCore", "ApusCrypto", "ApusTracing", "ApusListener", "ApusWire", "ApusThreads", "ApusTLS",
                "CApusNet", "CApusThreads", "CApusZstd", nioCore, nioPosix, nioTLS, log, coreMetrics,
            ]),
        layer(
            "Engine", "ApusStorage",
            ["ApusCore", "ApusListener", "ApusPQ", grdb, protobuf, dequeModule, log, coreMetrics]),
        layer(
            "Engine", "ApusEtcd",
            ["ApusCore", "ApusStorage", "ApusHTTPClient", protobuf, log, coreMetrics]),
        layer(
            "Engine", "ApusCluster",
            [
                "ApusCore", "ApusTracing", "ApusWire", "ApusTransport", "ApusStorage", nioCore, protobuf,
                orderedCollections, dequeModule, lifecycle, log, coreMetrics,
            ]),

        layer(
            "Engine", "ApusRelay",
            ["ApusCore", "ApusThreads", "ApusTraversal", "CApusNet", "CApusTLS", dequeModule, log, coreMetrics]),

        // Services: machine + actor each.
        layer(
            "Services", "ApusSessions",
            [
                "ApusCore", "ApusCrypto", "ApusWire", "ApusContract", "ApusStorage", "ApusTransport", "ApusCluster",
                protobuf, dequeModule, lifecycle, log, coreMetrics,
            ]),
        layer(
            "Services", "ApusChannels",
            [
                "ApusCore", "ApusWire", "ApusMedia", "ApusTransport", "ApusCluster", "CApusMemory", nioCore, protobuf,
                dequeModule, log, coreMetrics,
            ]),

        layer(
            "Services", "ApusClientAPI",
            [
                "ApusCore", "ApusConfiguration", "ApusTracing", "ApusThreads", "ApusWire", "ApusContract",
                "ApusTransport", "ApusStorage", "ApusCluster", "ApusSessions", nioCore, protobuf, orderedCollections,
                dequeModule, lifecycle, log, coreMetrics,
            ]),

        layer(
            "Services", "ApusOperators",
            [
                "ApusCore", "ApusWire", "ApusContract", "ApusMedia", "ApusCluster", "ApusSessions", "ApusChannels",
                "ApusClientAPI", protobuf,
            ]),
        layer(
            "Services", "ApusMediaAccess",
            [
                "ApusCore", "ApusContract", "ApusMedia", "ApusTransport", "ApusSessions", "ApusChannels",
                "ApusClientAPI", nioCore,
            ]),
        layer(
            "Services", "ApusThings",
            [
                "ApusCore", "ApusConfiguration", "ApusWire", "ApusContract", "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusClientAPI", protobuf, coreMetrics,
            ]),
        layer("Services", "ApusGrammar", ["ApusCore", yams]),
        layer(
            "Services", "ApusFirmware",
            [
                "ApusCore", "ApusConfiguration", "ApusCrypto", "ApusContract", "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusClientAPI", "ApusThings", protobuf, lifecycle, coreMetrics, log,
            ]),
        layer(
            "Services", "ApusCommands",
            [
                "ApusCore", "ApusConfiguration", "ApusWire", "ApusContract", "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusClientAPI", "ApusThings", protobuf, lifecycle, coreMetrics,
            ]),
        layer(
            "Services", "ApusTimers",
            [
                "ApusCore", "ApusConfiguration", "ApusWire", "ApusContract", "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusClientAPI", "ApusThings", protobuf, coreMetrics,
            ]),
        layer(
            "Services", "ApusDiagnosisService",
            [
                "ApusCore", "ApusConfiguration", "ApusWire", "ApusContract", "ApusDiagnosis", "ApusStorage",
                "ApusCluster", "ApusSessions", "ApusChannels", "ApusClientAPI", protobuf, coreMetrics,
            ]),
        layer(
            "Services", "ApusDeviceAuthorization",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusContract", "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusClientAPI", "ApusThings", protobuf, coreMetrics,
            ]),
        layer(
            "Services", "ApusSignIn",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusContract", "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusClientAPI", protobuf, coreMetrics,
            ]),
        layer(
            "Services", "ApusDialogs",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusWire", "ApusContract", "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusClientAPI", "ApusThings", "ApusCommands", "ApusTimers", "ApusEvents",
                "ApusGrammar", "ApusHTTPClient", protobuf, lifecycle, coreMetrics, log,
            ]),
        layer(
            "Services", "ApusSpeech",
            [
                "ApusCore", "ApusConfiguration", "ApusWyoming", "ApusWyomingClient", "ApusContract", "ApusMedia",
                "ApusCluster", "ApusSessions", "ApusChannels", "ApusClientAPI", "ApusMediaAccess", "ApusThings",
                "ApusDialogs", nioCore, protobuf, lifecycle, coreMetrics, log,
            ]),
        layer(
            "Services", "ApusCalls",
            [
                "ApusCore", "ApusConfiguration", "ApusCrypto", "ApusWire", "ApusContract", "ApusOutgoing",
                "ApusStorage", "ApusCluster", "ApusSessions", "ApusClientAPI", "ApusMediaAccess", "ApusEvents",
                protobuf, lifecycle, coreMetrics, log,
            ]),
        layer(
            "Services", "ApusAnswering",
            [
                "ApusCore", "ApusConfiguration", "ApusWire", "ApusContract", "ApusMedia", "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusChannels", "ApusClientAPI", "ApusCalls", "ApusEvents", nioCore, protobuf,
                lifecycle, coreMetrics, log,
            ]),
        layer(
            "Services", "ApusRecordings",
            [
                "ApusCore", "ApusConfiguration", "ApusMedia", "ApusContract", "ApusWire", "ApusObjectStore",
                "ApusRecordingLog", "ApusStorage", "ApusCluster", "ApusSessions", "ApusChannels", "ApusClientAPI",
                nioCore, protobuf, lifecycle, coreMetrics, log,
            ]),
        layer(
            "Services", "ApusEvents",
            [
                "ApusCore", "ApusConfiguration", "ApusCrypto", "ApusTraversal", "ApusOutgoing", "ApusWire",
                "ApusContract", "ApusStorage", "ApusCluster", "ApusSessions", "ApusClientAPI", "ApusThings", protobuf,
                lifecycle, coreMetrics, log,
            ]),
        layer(
            "Services", "ApusRelayService",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusContract", "ApusListener", "ApusWire",
                "ApusTransport", "ApusTraversal", "ApusCluster", "ApusRelay", "ApusSessions", nioCore, protobuf,
                lifecycle, unixSignals, log,
            ]),

        // Edges: sockets for devices, apps and operators.
        layer(
            "Edges", "ApusGateway",
            [
                "ApusCore", "ApusTracing", "ApusListener", "ApusWire", "ApusContract", "ApusMedia", "ApusTransport",
                "ApusCluster", "ApusSessions", "ApusChannels", "ApusClientAPI", "ApusMediaAccess", "CApusMemory",
                "ApusTLS", nioCore, nioPosix, protobuf, lifecycle, log, coreMetrics,
            ]),
        .target(
            name: "ApusConsole", dependencies: ["ApusCore", "ApusCrypto", "CApusConsole"],
            path: "Sources/Edges/ApusConsole", exclude: ["files"], swiftSettings: apusSettings),
        layer(
            "Edges", "ApusHTTP",
            [
                "ApusCore", "ApusCrypto", "ApusTracing", "ApusListener", "ApusWire", "ApusContract", "ApusTLS",
                "ApusTraversal", "ApusMedia", "ApusTransport", "ApusCluster", "ApusSessions", "ApusChannels",
                "ApusClientAPI", "ApusMediaAccess", "ApusDeviceAuthorization", "ApusSignIn", "ApusConsole",
                "CApusMemory", hummingbird, hummingbirdCore, httpTypes, nioCore, nioPosix, nioHTTP1, nioWebSocket,
                nioHTTPTypes, nioHTTPTypesHTTP1, protobuf, lifecycle, log, coreMetrics,
            ]),

        // Node: its configuration, and the only place that joins the parts.
        layer(
            "Node", "ApusNodeConfiguration",
            [
                "ApusCore", "ApusConfiguration", "ApusTracing", "ApusListener", "ApusMedia", "ApusTransport",
                "ApusStorage", "ApusCluster", "ApusSessions", "ApusChannels", "ApusClientAPI", "ApusCommands",
                "ApusTimers", "ApusCalls", "ApusAnswering", "ApusEvents", "ApusFirmware", "ApusRecordings",
                "ApusDiagnosisService", "ApusRelayService", "ApusGateway", "ApusHTTP", "ApusThings", "ApusDialogs",
                "ApusSpeech", "ApusDeviceAuthorization", "ApusSignIn", nioCore, log,
            ]),
        layer(
            "Node", "ApusRelayNode",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusContract", "ApusListener", "ApusTraversal",
                "ApusRelay", "ApusRelayService", "ApusClientAPI", "ApusHTTP", nioCore, nioPosix, lifecycle, unixSignals,
                log,
            ]),
        layer(
            "Node", "ApusNode",
            [
                "ApusCore", "ApusThreads", "ApusTracing", "ApusListener", "ApusWire", "ApusContract", "ApusMedia",
                "ApusTransport", "ApusStorage", "ApusEtcd", "ApusCluster", "ApusSessions", "ApusChannels",
                "ApusClientAPI", "ApusDeviceAuthorization", "ApusSignIn", "ApusOperators", "ApusRelayService",
                "ApusMediaAccess", "ApusGateway", "ApusHTTP", "ApusTraversal", "ApusRelay", "ApusTLS",
                "ApusNodeConfiguration", nioCore, nioPosix, lifecycle, unixSignals, protobuf, log, coreMetrics,
            ]),

        // Clients: never a server target.
        layer(
            "Clients", "ApusClient",
            [
                "ApusCore", "ApusCrypto", "ApusThreads", "ApusTLS", "ApusWire", "ApusContract", "ApusDiagnosis",
                "ApusMedia", "CApusMedia", nioCore, nioPosix, nioTLS, protobuf, dequeModule, log,
            ]),
        layer(
            "Clients", "ApusDevice",
            [
                "ApusCore", "ApusCrypto", "ApusWire", "ApusContract", "ApusThreads", "ApusTLS", "ApusMedia",
                "ApusClient", "CApusMedia", nioCore, nioPosix, nioHTTP1, grdb, protobuf, dequeModule, log,
            ]),

        // Command: histories, local clusters and their processes, the verbs, and the binaries that have them.
        layer("Command", "ApusHistory", ["ApusCore"]),
        layer(
            "Command", "ApusLocal",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusContract", "ApusHTTPClient", "ApusSessions",
                "ApusTransport", "ApusTraversal", "ApusRelayService", "ApusNodeConfiguration", "ApusRelayNode",
                "CApusNamespaces", "CApusTLS", nioCore, nioPosix,
            ]),
        layer(
            "Command", "ApusProvider",
            ["ApusCore", "ApusThreads", "ApusSphinx", "ApusWyoming", "ApusWyomingServer", nioCore, nioPosix, log]),
        layer(
            "Command", "ApusCLI",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusWire", "ApusContract", "ApusMedia", "ApusStorage",
                "ApusCluster", "ApusSessions", "ApusThings", "ApusRelayService", "ApusHTTP", "ApusNodeConfiguration",
                "ApusRelayNode", "ApusNode", "ApusClient", "ApusDevice", "ApusTLS", "ApusTraversal", "ApusLocal",
                "ApusWyoming", "ApusWyomingClient", "ApusWyomingServer", "ApusProvider", "ApusSphinx", "ApusThreads",
                "CApusThreads", nioCore, nioPosix, protobuf, unixSignals, log, coreMetrics, arguments,
            ], for: .compileTime),
        .executableTarget(
            name: "apus", dependencies: ["ApusCLI"], path: "Sources/Command/apus", swiftSettings: apusSettings,
            linkerSettings: apusLinker),
        layer(
            "Command", "ApusBench",
            [
                "ApusCore", "ApusWire", "ApusContract", "ApusMedia", "ApusTraversal", "ApusThreads", "ApusTransport",
                "ApusStorage", "ApusEtcd", "ApusCluster", "ApusSessions", "ApusClient", "ApusDevice", "ApusHistory",
                "ApusLocal", "ApusTLS", "CApusMemory", nioCore, nioPosix, nioHTTP1, nioWebSocket, hummingbird,
                httpTypes, protobuf, unixSignals, log, arguments,
            ], for: isMeasuring ? .speed : .compileTime),
        .executableTarget(
            name: "apus-bench", dependencies: ["ApusBench"], path: "Sources/Command/apus-bench",
            swiftSettings: apusSettings, linkerSettings: apusLinker),

        // Examples: services of others, each in a binary of its own.
        .executableTarget(
            name: "apus-doors",
            dependencies: [
                "ApusCore", "ApusWire", "ApusContract", "ApusStorage", "ApusCluster", "ApusClientAPI", "ApusEvents",
                "ApusCLI", protobuf,
            ],
            path: "Examples/Doors", exclude: ["pass"], swiftSettings: apusSettings, linkerSettings: apusLinker),
        .executableTarget(
            name: "apus-registers",
            dependencies: [
                "ApusCore", "ApusWire", "ApusContract", "ApusStorage", "ApusCluster", "ApusClientAPI", "ApusCLI",
                protobuf,
            ],
            path: "Examples/Registers", swiftSettings: apusSettings, linkerSettings: apusLinker),

        // Testing.
        .target(
            name: "CApusTestTLS", path: "Sources/Testing/CApusTestTLS",
            linkerSettings: [.linkedLibrary("ssl"), .linkedLibrary("crypto")]),
        layer("Testing", "ApusTestKit", ["ApusCore", "CApusTestTLS", nioCore, nioPosix, nioHTTP1, nioTLS, log]),
        layer(
            "Testing", "ApusSimulation",
            ["ApusCore", "ApusWire", "ApusStorage", "ApusCluster", "ApusCalls", nioCore, dequeModule, protobuf]),

        test(
            "ApusRelayTests",
            ["ApusCore", "ApusThreads", "ApusTraversal", "ApusRelay", "ApusHTTP", "ApusTestKit", "CApusTLS", log]),
        test("ApusCoreTests", ["ApusCore", log]),
        test("ApusCryptoTests", ["ApusCore", "ApusCrypto", "ApusTestKit", "CApusCrypto"]),
        test(
            "ApusTLSTests",
            ["ApusCore", "ApusTLS", "ApusTransport", "ApusTestKit", nioCore, nioEmbedded, nioPosix, nioTLS]),
        test("ApusHistoryTests", ["ApusCore", "ApusHistory"]),
        test(
            "ApusClientAPITests",
            [
                "ApusCore", "ApusTracing", "ApusThreads", "ApusWire", "ApusContract", "ApusCluster", "ApusSessions",
                "ApusClientAPI", tracing, nioCore, nioPosix, protobuf, log,
            ]),
        test("ApusCommandsTests", ["ApusCore", "ApusCommands", protobuf]),
        test("ApusDiagnosisTests", ["ApusCore", "ApusContract", "ApusDiagnosis", protobuf]),
        test("ApusDiagnosisServiceTests", ["ApusCore", "ApusContract", "ApusDiagnosisService", protobuf]),
        test("ApusTimersTests", ["ApusCore", "ApusTimers", protobuf]),
        test(
            "ApusRecordingsTests",
            [
                "ApusCore", "ApusContract", "ApusMedia", "ApusObjectStore", "ApusRecordingLog", "ApusStorage",
                "ApusSessions", "ApusClientAPI", "ApusRecordings", "ApusTestKit", nioCore, protobuf,
            ]),
        test("ApusDeviceAuthorizationTests", ["ApusCore", "ApusDeviceAuthorization", protobuf]),
        test(
            "ApusSpeechTests", ["ApusCore", "ApusMedia", "ApusWyoming", "ApusSpeech", "ApusTestKit", nioCore],
            for: .speed),
        test(
            "ApusCallsTests", ["ApusCore", "ApusStorage", "ApusCluster", "ApusCalls", "ApusTestKit", protobuf],
            for: .speed),
        test(
            "ApusFirmwareTests",
            ["ApusCore", "ApusCrypto", "ApusContract", "ApusStorage", "ApusFirmware", "ApusDevice", protobuf]),
        test(
            "ApusAnsweringTests",
            ["ApusCore", "ApusMedia", "ApusStorage", "ApusAnswering", nioCore, protobuf]),
        test(
            "ApusOutgoingTests",
            ["ApusCore", "ApusCrypto", "ApusTestKit", "ApusOutgoing", lifecycle, log]),
        test(
            "ApusObjectStoreTests", ["ApusCore", "ApusCrypto", "ApusObjectStore", "ApusTestKit"], exclude: ["Servers"]),
        test(
            "ApusRecordingLogTests",
            ["ApusCore", "ApusMedia", "ApusRecordingLog", "ApusTestKit", "CApusMemory", nioCore], for: .speed),
        test("ApusHTTPClientTests", ["ApusCore", "ApusHTTPClient", "ApusTestKit", nioCore, nioPosix]),
        test("ApusEventsTests", ["ApusCore", "ApusContract", "ApusStorage", "ApusTraversal", "ApusEvents", protobuf]),
        test("ApusGrammarTests", ["ApusCore", "ApusGrammar"]),
        test(
            "ApusDialogsTests",
            ["ApusCore", "ApusConfiguration", "ApusContract", "ApusDialogs", "ApusTestKit", protobuf], for: .speed),
        test("ApusThingsTests", ["ApusCore", "ApusStorage", "ApusSessions", "ApusThings", protobuf]),
        test(
            "ApusHTTPTests",
            [
                "ApusCore", "ApusTracing", "ApusTestKit", "ApusContract", "ApusMedia", "ApusObjectStore", "ApusStorage",
                "ApusSessions", "ApusClientAPI", "ApusRecordings", "ApusHTTP", "ApusDevice", protobuf, nioCore,
                nioPosix, lifecycle, log, coreMetrics,
            ]),
        test("ApusTracingTests", ["ApusCore", "ApusTracing", tracing]),
        test("ApusListenerTests", ["ApusCore", "ApusListener", "ApusTestKit", nioCore, nioPosix, log]),
        test(
            "ApusSessionsTests",
            [
                "ApusCore", "ApusCrypto", "ApusWire", "ApusContract", "ApusStorage", "ApusTransport", "ApusCluster",
                "ApusSessions", "ApusTestKit", nioPosix, protobuf, log,
            ], exclude: ["Fixtures"]),
        test(
            "ApusGatewayTests",
            [
                "ApusCore", "ApusCrypto", "ApusWire", "ApusContract", "ApusMedia", "ApusTransport", "ApusStorage",
                "ApusCluster", "ApusSessions", "ApusChannels", "ApusClientAPI", "ApusMediaAccess", "ApusGateway",
                "ApusTLS", "ApusTestKit", nioCore, nioPosix, protobuf, log,
            ]),
        test("ApusMediaAccessTests", ["ApusCore", "ApusMediaAccess"]),
        test(
            "ApusNodeTests",
            [
                "ApusCore", "ApusCrypto", "ApusConfiguration", "ApusListener", "ApusWire", "ApusTransport",
                "ApusStorage", "ApusCluster", "ApusGateway", "ApusHTTP", "ApusTraversal", "ApusRelay",
                "ApusRelayService", "ApusNodeConfiguration", "ApusRelayNode", "ApusNode", "ApusTestKit", log, protobuf,
            ]),
        test("ApusLocalTests", ["ApusCore", "ApusLocal", "ApusTransport"]),
        // One build of the tests thereby compiles the programs beside the rest (scripts/lib/build-tests.sh).
        test("ApusCLITests", ["ApusCore", "ApusWyoming", "ApusBench", "ApusCLI", arguments]),
        test(
            "ClusterTests",
            [
                "ApusCore", "ApusCrypto", "ApusStorage", "ApusSessions", "ApusContract", "ApusMedia", "ApusClient",
                "ApusDevice", "ApusHistory", "ApusLocal", "ApusNodeConfiguration", "ApusTestKit", "ApusTraversal",
                "ApusWyoming", log, nioCore, nioPosix, protobuf,
            ]),
        test("RelayClientTests", ["ApusTestKit", nioCore, nioPosix], exclude: ["Clients"]),
        test(
            "TidyTests",
            [
                "ApusCore", "ApusWire", "ApusMedia", "ApusConfiguration", "ApusHTTP", "ApusNodeConfiguration",
                "ApusRelayNode",
            ], for: .speed),
        test(
            "ApusWireTests", ["ApusCore", "ApusWire", "ApusCluster", "ApusTestKit", nioCore, protobuf],
            exclude: ["Version1"]),
        test(
            "ApusClusterTests",
            [
                "ApusCore", "ApusTracing", "ApusWire", "ApusStorage", "ApusTransport", "ApusCluster", "ApusTestKit",
                nioCore, nioPosix, protobuf, log,
            ]),
        test("SimulationTests", ["ApusCore", "ApusSimulation", "ApusTestKit"]),
        test(
            "FuzzTests",
            [
                "ApusCore", "ApusCrypto", "ApusWire", "ApusContract", "ApusMedia", "ApusTraversal", "ApusRelay",
                "ApusSessions", "ApusTransport", "ApusTLS", "ApusCluster", "ApusChannels", "ApusClientAPI",
                "ApusWyoming", "ApusGateway", "ApusHTTP", "ApusConfiguration", "CApusCrypto", "CApusTLS",
                "CApusTestTLS", hummingbird, hummingbirdCore, httpTypes, nioCore, nioEmbedded, nioHTTP1, protobuf, log,
            ],
            in: "Fuzz", exclude: ["Entry.swift", "Corpus", "Crashes"]),
        test(
            "ApusStorageTests",
            ["ApusCore", "ApusPQ", "ApusStorage", "ApusEtcd", "ApusTestKit", grdb, nioCore, nioPosix, protobuf, log]),
        test(
            "ApusChannelsTests",
            [
                "ApusCore", "ApusWire", "ApusMedia", "ApusTransport", "ApusCluster", "ApusChannels", "ApusTestKit",
                nioCore, nioPosix, protobuf, log,
            ], for: .speed),
        test("ApusMediaTests", ["ApusCore", "ApusWire", "ApusMedia", "ApusTestKit", nioCore]),
        test("ApusTraversalTests", ["ApusCore", "ApusTraversal"]),
        test(
            "ApusProviderTests",
            [
                "ApusCore", "ApusGrammar", "ApusSphinx", "ApusWyoming", "ApusProvider", "ApusTestKit", nioCore,
                nioPosix, log,
            ]),
        test("ApusWyomingTests", ["ApusCore", "ApusWyoming", "ApusTestKit", nioCore], exclude: ["Clients"]),
        test(
            "ApusTransportTests",
            ["ApusCore", "ApusTracing", "ApusWire", "ApusTransport", "ApusTestKit", nioCore, nioPosix, protobuf, log]),
        test(
            "ApusClientTests",
            [
                "ApusCore", "ApusCrypto", "ApusContract", "ApusDiagnosis", "ApusMedia", "ApusSessions", "ApusClient",
                "ApusDevice", "ApusTestKit", nioCore, protobuf, log,
            ]),
        test(
            "ApusDeviceTests",
            [
                "ApusCore", "ApusCrypto", "ApusContract", "ApusThreads", "ApusMedia", "ApusClient", "ApusDevice",
                "ApusTestKit", nioCore, protobuf, log,
            ]),
    ]
)
