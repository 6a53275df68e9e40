// swift-tools-version: 6.2
import PackageDescription

// A package that an app has beside the SDK. It asks for newer patch versions of swift-log and swift-nio than the lower
// bounds of Apus's manifest. All packages of an app share one version of each dependency, and SwiftPM takes the newest
// that all of them allow. If Apus's manifest had exact versions, an app could not have a package that needs a newer
// patch version than they are.
let package = Package(
    name: "Newer",
    products: [.library(name: "Newer", targets: ["Newer"])],
    dependencies: [
        .package(url: "https://github.com/apple/swift-log", from: "1.16.2"),
        .package(url: "https://github.com/apple/swift-nio", from: "2.101.2"),
    ],
    targets: [
        .target(
            name: "Newer",
            dependencies: [
                .product(name: "Logging", package: "swift-log"),
                .product(name: "NIOCore", package: "swift-nio"),
                .product(name: "NIOPosix", package: "swift-nio"),
            ],
            path: "Sources")
    ]
)
