/** The library on a desktop: a companion app for the command line, and a benchmark. */
package dev.pocketserve.desktop;
